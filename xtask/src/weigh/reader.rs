//! Reads the tree of one source file: what its modules declare, import and name, and which lines are unit tests.

use std::ops::RangeInclusive;

use proc_macro2::{TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItem, Item, Meta, Token, Type, UseTree, Visibility};

use super::source::{Child, Declared, Import, Kind, Methods, Scope, Visible};

/// Reads what a module consists of.
#[derive(Debug, Default)]
pub(super) struct Reader {
    pub(super) scope: Scope,
    /// The lines of unit tests.
    pub(super) tests: Vec<RangeInclusive<usize>>,
    pub(super) has_tests: bool,
    /// In how many blocks the item is that is being read.
    blocks: usize,
}

impl Reader {
    pub(super) fn of(file: &syn::File) -> Self {
        let mut reader = Self::default();
        reader.visit_file(file);
        reader
    }

    fn declare(&mut self, ident: &syn::Ident, kind: Kind, visible: Visible, members: usize) {
        if self.blocks == 0 {
            self.scope.declared.push(Declared {
                name: ident.to_string(),
                kind,
                visible,
                members: members as u64,
            });
        }
    }

    fn declare_item(&mut self, item: &Item) {
        let is_hidden = attributes(item).iter().any(is_hidden);
        let visible = |written: &Visibility| visible(written, is_hidden);
        match item {
            Item::Const(item) => self.declare(&item.ident, Kind::Value, visible(&item.vis), 0),
            Item::Static(item) => self.declare(&item.ident, Kind::Value, visible(&item.vis), 0),
            Item::Fn(item) => self.declare(&item.sig.ident, Kind::Value, visible(&item.vis), 0),
            Item::Struct(item) => self.declare(&item.ident, Kind::Type, visible(&item.vis), 0),
            Item::Enum(item) => self.declare(&item.ident, Kind::Type, visible(&item.vis), 0),
            Item::Union(item) => self.declare(&item.ident, Kind::Type, visible(&item.vis), 0),
            Item::Type(item) => self.declare(&item.ident, Kind::Type, visible(&item.vis), 0),
            Item::Trait(item) => {
                self.declare(
                    &item.ident,
                    Kind::Type,
                    visible(&item.vis),
                    item.items.len(),
                );
            }
            Item::Macro(item) => {
                if let Some(ident) = &item.ident {
                    let mut attributes = item.attrs.iter();
                    let visible = match attributes.any(|one| one.path().is_ident("macro_export")) {
                        true if is_hidden => Visible::Crate,
                        true => Visible::Everywhere,
                        false => Visible::Here,
                    };
                    self.declare(ident, Kind::Macro, visible, 0);
                }
            }
            Item::Use(item) if item.leading_colon.is_none() => {
                let visible = visible(&item.vis);
                imports(
                    &item.tree,
                    &mut Vec::new(),
                    visible,
                    &mut self.scope.imports,
                );
            }
            Item::Impl(item) if item.trait_.is_none() => {
                if let Type::Path(of) = &*item.self_ty {
                    let of = segments(&of.path);
                    let public = item.items.iter().filter(|item| is_public(item)).count();
                    let public = public as u64;
                    self.scope.methods.push(Methods { of, public });
                }
            }
            _ => {}
        }
    }

    fn module(&mut self, module: &syn::ItemMod, is_test: bool) {
        let is_hidden = module.attrs.iter().any(is_hidden);
        let content = module.content.as_ref().map(|(_, items)| {
            let mut reader = Self::default();
            items.iter().for_each(|item| reader.visit_item(item));
            self.tests.extend(reader.tests);
            self.has_tests |= reader.has_tests;
            reader.scope
        });
        self.scope.modules.push(Child {
            name: module.ident.to_string(),
            visible: visible(&module.vis, is_hidden),
            is_test,
            path: module.attrs.iter().find_map(path_of_module),
            content,
        });
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        let is_test = attributes(item).iter().any(is_for_tests);
        if is_test {
            let span = item.span();
            self.tests.push(span.start().line..=span.end().line);
        }
        self.has_tests |= attributes(item).iter().any(is_test_harness);
        match item {
            Item::Mod(module) if is_test && module.content.is_some() => {}
            Item::Mod(module) => self.module(module, is_test),
            _ if is_test => {}
            _ => {
                self.declare_item(item);
                visit::visit_item(self, item);
            }
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        match item {
            ImplItem::Fn(method) if method.attrs.iter().any(is_for_tests) => {
                let span = item.span();
                self.tests.push(span.start().line..=span.end().line);
            }
            _ => visit::visit_impl_item(self, item),
        }
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        self.blocks += 1;
        visit::visit_block(self, block);
        self.blocks -= 1;
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() && path.segments.len() > 1 {
            self.scope.paths.push(segments(path));
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        visit::visit_macro(self, called);
        paths(called.tokens.clone(), &mut self.scope.paths);
    }

    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns whether an attribute leaves out what it is on unless tests are compiled.
fn is_for_tests(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg") && any_inner(&attribute.meta, implies_test)
}

/// Returns whether an attribute is `#[test]` or of its kind, such as `#[tokio::test]`.
fn is_test_harness(attribute: &Attribute) -> bool {
    let last = attribute.path().segments.last();
    last.is_some_and(|last| last.ident == "test")
}

fn implies_test(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) => list.path.is_ident("all") && any_inner(condition, implies_test),
        Meta::NameValue(_) => false,
    }
}

fn any_inner(meta: &Meta, holds: fn(&Meta) -> bool) -> bool {
    let Meta::List(list) = meta else { return false };
    let inner = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
    inner.is_ok_and(|inner| inner.iter().any(holds))
}

fn is_hidden(attribute: &Attribute) -> bool {
    let is_word = |meta: &Meta| meta.path().is_ident("hidden");
    attribute.path().is_ident("doc") && any_inner(&attribute.meta, is_word)
}

/// The file in `#[path = "…"]`.
fn path_of_module(attribute: &Attribute) -> Option<String> {
    let Meta::NameValue(named) = &attribute.meta else {
        return None;
    };
    match &named.value {
        syn::Expr::Lit(syn::ExprLit {
            lit: syn::Lit::Str(path),
            ..
        }) if named.path.is_ident("path") => Some(path.value()),
        _ => None,
    }
}

fn visible(written: &Visibility, is_hidden: bool) -> Visible {
    match written {
        Visibility::Public(_) if !is_hidden => Visible::Everywhere,
        Visibility::Public(_) | Visibility::Restricted(_) => Visible::Crate,
        Visibility::Inherited => Visible::Here,
    }
}

fn is_public(item: &ImplItem) -> bool {
    let (written, attributes) = match item {
        ImplItem::Fn(item) => (&item.vis, &item.attrs),
        ImplItem::Const(item) => (&item.vis, &item.attrs),
        _ => return false,
    };
    visible(written, attributes.iter().any(is_hidden)) == Visible::Everywhere
}

fn segments(path: &syn::Path) -> Vec<String> {
    let segments = path.segments.iter();
    segments.map(|segment| segment.ident.to_string()).collect()
}

/// Collects the names of a `use` item.
fn imports(tree: &UseTree, at: &mut Vec<String>, visible: Visible, into: &mut Vec<Import>) {
    let (last, name) = match tree {
        UseTree::Path(path) => {
            at.push(path.ident.to_string());
            imports(&path.tree, at, visible, into);
            at.pop();
            return;
        }
        UseTree::Group(group) => {
            let mut trees = group.items.iter();
            return trees
                .by_ref()
                .for_each(|tree| imports(tree, at, visible, into));
        }
        UseTree::Glob(_) => (None, None),
        UseTree::Name(name) => (Some(&name.ident), Some(&name.ident)),
        UseTree::Rename(renamed) => (Some(&renamed.ident), Some(&renamed.rename)),
    };
    let last = last.filter(|last| *last != "self");
    let path: Vec<_> = (at.iter().cloned())
        .chain(last.map(ToString::to_string))
        .collect();
    // `{self}` has the name of the module.
    let name = name.map(|name| {
        if name == "self" {
            at.last().cloned().unwrap_or_default()
        } else {
            name.to_string()
        }
    });
    into.push(Import {
        path,
        name,
        visible,
    });
}

/// Collects the paths in what a macro is called with.
fn paths(tokens: TokenStream, into: &mut Vec<Vec<String>>) {
    let mut path: Vec<String> = Vec::new();
    let mut colons = 0;
    let mut end = |path: &mut Vec<String>| {
        let path = std::mem::take(path);
        if path.len() > 1 {
            into.push(path);
        }
    };
    let mut inner = Vec::new();
    for tree in tokens {
        match tree {
            TokenTree::Ident(ident) => {
                if colons != 2 {
                    end(&mut path);
                }
                path.push(ident.to_string());
                colons = 0;
            }
            TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
            other => {
                end(&mut path);
                colons = 0;
                if let TokenTree::Group(group) = other {
                    inner.push(group.stream());
                }
            }
        }
    }
    end(&mut path);
    inner.into_iter().for_each(|stream| paths(stream, into));
}
