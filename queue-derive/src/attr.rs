use proc_macro2::TokenStream;
use syn::ext::IdentExt as _;
use syn::parse::discouraged::Speculative as _;
use syn::parse::{Parse, ParseStream, Parser as _};
use syn::punctuated::Punctuated;
use syn::{
    Attribute, Expr, ExprLit, Ident, Lit, LitInt, LitStr, Meta, MetaNameValue, Path, Token, Type,
    bracketed, parenthesized, parse_quote, token,
};

use crate::ast::Mark;
use crate::names::nearest;
use crate::problem::{Problem, Problems};

macro_rules! type_attributes {
    ($($name:literal $field:ident: $type:ty = $expected:literal,)*) => {
        /// The attributes of a type, in the order in which errors list them.
        const TYPE_ATTRIBUTES: &[&str] = &[$($name),*];

        /// The unvalidated attributes of a type.
        #[derive(Default)]
        pub(crate) struct TypeAttributes {
            $(pub(crate) $field: Setting<$type>,)*
        }

        impl TypeAttributes {
            /// Reads an attribute; returns false, and reads nothing, if a type takes none of this name.
            fn read_known(&mut self, name: &str, item: &mut Item<'_, '_>) -> bool {
                match name {
                    $($name => item.read(&mut self.$field, $expected),)*
                    _ => return false,
                }
                true
            }
        }
    };
}

// Each attribute with what errors say that it takes.
type_attributes! {
    "kind" kind: LitStr = "a string, as in `kind = \"slice-request\"`",
    "alias" alias: Aliases = "a string or a list of strings, as in `alias = \"old-kind\"` or \
        `alias = [\"old-kind\", \"older-kind\"]`",
    "version" version: LitInt = "a whole number, as in `version = 2`",
    "upgrade_from" upgrade_from: Type = "a type, as in `upgrade_from = SliceRequestV1`",
    "queue" queue: LitStr = "a string, as in `queue = \"slice-request\"`",
    "visibility_timeout" visibility_timeout: LitStr =
        "a duration in a string, as in `visibility_timeout = \"2m\"`",
    "time_to_live" time_to_live: LitStr = "a duration in a string, as in `time_to_live = \"7d\"`",
    "poison_threshold" poison_threshold: LitInt = "a whole number, as in `poison_threshold = 5`",
    "poison_queue" poison_queue: LitStr = "a string, as in `poison_queue = \"broken-slices\"`",
    "key_scope" key_scope: LitStr = "a string, as in `key_scope = \"global\"`",
    "wire" wire: LitStr = "a string, as in `wire = \"bare\"`",
    "compress" compress: Flag = "no value",
    "packed" packed: Flag = "no value",
    "tracked" tracked: Flag = "no value",
    "history" history: LitInt = "a whole number, as in `history = 100_000`",
    "history_age" history_age: LitStr = "a duration in a string, as in `history_age = \"30d\"`",
    "crate" krate: ModPath = "a path, as in `crate = my_crate::queues`",
}

/// The value of one attribute.
#[derive(Default)]
pub(crate) enum Setting<T> {
    /// The attribute is absent.
    #[default]
    Absent,
    /// Written with a value that could not be parsed, which has been reported.
    Unreadable,
    Given(T),
}

/// What an attribute can be set to.
trait Value: Parse {
    /// What it means to write the name alone, if that is allowed.
    fn of_name() -> Option<Self> {
        None
    }
}

impl Value for LitStr {}
impl Value for LitInt {}
impl Value for Type {}
impl Value for Aliases {}
impl Value for ModPath {}

/// An attribute that takes no value.
pub(crate) struct Flag;

impl Parse for Flag {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        Err(input.error("a value"))
    }
}

impl Value for Flag {
    fn of_name() -> Option<Self> {
        Some(Self)
    }
}

/// One kind, or several in brackets.
pub(crate) struct Aliases(pub(crate) Vec<LitStr>);

impl TypeAttributes {
    pub(crate) fn read(attributes: &[Attribute], problems: &mut Problems) -> Self {
        let mut read = Self::default();
        for attribute in ours(attributes) {
            each_item(attribute, problems, |name, input, problems| {
                read.item(name, input, problems);
            });
        }
        read
    }

    /// Returns the path of the crate that generated code refers to.
    pub(crate) fn crate_path(&self) -> Path {
        match self.krate.given() {
            Some(ModPath(path)) => path.clone(),
            None => parse_quote!(::queue_runtime),
        }
    }

    fn item(&mut self, name: &Ident, input: ParseStream<'_>, problems: &mut Problems) {
        let mut item = Item {
            name,
            input,
            problems,
        };
        let text = name.to_string();
        if self.read_known(&text, &mut item) {
            return;
        }
        let allowed = listed(TYPE_ATTRIBUTES);
        let problem = if let Some(mark) = Mark::ALL.into_iter().find(|it| it.to_string() == text) {
            Problem::MarkOnType(mark, allowed)
        } else {
            Problem::UnknownOnType {
                hint: nearest(&text, TYPE_ATTRIBUTES)
                    .map(|known| format!(" (did you mean `{known}`?)"))
                    .unwrap_or_default(),
                found: text,
                allowed,
            }
        };
        problems.push(name, problem);
        skip_item(input);
    }
}

impl<T> Setting<T> {
    /// The value, if one was given and could be parsed.
    pub(crate) fn given(&self) -> Option<&T> {
        match self {
            Self::Given(value) => Some(value),
            Self::Absent | Self::Unreadable => None,
        }
    }

    /// Whether the attribute was not written, so that its default applies.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }
}

/// Finds `key` and `group` in a field's `#[message(…)]`.
pub(crate) fn read_marks(attributes: &[Attribute], problems: &mut Problems) -> Vec<Mark> {
    let mut marks = Vec::new();
    for attribute in ours(attributes) {
        each_item(attribute, problems, |name, input, problems| {
            let value = skip_item(input);
            if let Some(mark) = Mark::ALL.into_iter().find(|mark| name == &mark.to_string()) {
                if marks.contains(&mark) {
                    problems.push(name, Problem::Twice(name.to_string()));
                } else if !value.is_empty() {
                    problems.push(&value, Problem::MarkValue(mark, shown(&value)));
                }
                marks.push(mark);
            } else if TYPE_ATTRIBUTES.iter().any(|known| name == known) {
                problems.push(name, Problem::TypeAttributeOnField(name.to_string()));
            } else {
                problems.push(name, Problem::UnknownOnField(name.to_string()));
            }
        });
    }
    marks
}

pub(crate) fn refuse_on_variant(attributes: &[Attribute], problems: &mut Problems) {
    for attribute in ours(attributes) {
        problems.push(attribute, Problem::OnVariant);
    }
}

/// Finds the first serde attribute that excludes the field from the payload.
pub(crate) fn serde_skip(attributes: &[Attribute]) -> Option<Ident> {
    serde_item(
        attributes,
        &["skip", "skip_serializing", "skip_deserializing"],
    )
}

/// Finds the first serde attribute with which the field, or its name, is not at one place among the fields.
pub(crate) fn serde_moves_lines(attributes: &[Attribute]) -> Option<Ident> {
    serde_item(
        attributes,
        &[
            "alias",
            "flatten",
            "skip_deserializing",
            "skip_serializing",
            "skip_serializing_if",
        ],
    )
}

fn serde_item(attributes: &[Attribute], wanted: &[&str]) -> Option<Ident> {
    let mut items = serde_items(attributes).into_iter();
    items
        .find(|(name, _)| wanted.iter().any(|wanted| name == wanted))
        .map(|(name, _)| name)
}

/// Finds the string of `#[serde(NAME = "…")]` or `#[serde(NAME(serialize = "…"))]`.
pub(crate) fn serde_written(attributes: &[Attribute], wanted: &str) -> Option<LitStr> {
    let mut items = serde_items(attributes).into_iter();
    items.find_map(|(name, value)| {
        let parser = |input: ParseStream<'_>| {
            if input.peek(token::Paren) {
                let list;
                parenthesized!(list in input);
                let list = Punctuated::<MetaNameValue, Token![,]>::parse_terminated(&list)?;
                let written = list.iter().find(|item| item.path.is_ident("serialize"));
                match written.map(|item| &item.value) {
                    Some(Expr::Lit(ExprLit {
                        lit: Lit::Str(text),
                        ..
                    })) => Ok(text.clone()),
                    _ => Err(input.error("not written")),
                }
            } else {
                input.parse::<Token![=]>().and_then(|_| input.parse())
            }
        };
        (name == wanted)
            .then(|| parser.parse2(value).ok())
            .flatten()
    })
}

/// Returns the items of the `#[serde(…)]` attributes, each as its name and the rest. serde reports what it
/// cannot parse.
fn serde_items(attributes: &[Attribute]) -> Vec<(Ident, TokenStream)> {
    let mut items = Vec::new();
    for attribute in attributes.iter().filter(|a| a.path().is_ident("serde")) {
        let _ = attribute.parse_args_with(|input: ParseStream<'_>| {
            while !input.is_empty() {
                items.push((input.call(Ident::parse_any)?, skip_item(input)));
                input.parse::<Option<Token![,]>>()?;
            }
            Ok(())
        });
    }
    items
}

fn ours(attributes: &[Attribute]) -> impl Iterator<Item = &Attribute> {
    attributes.iter().filter(|a| a.path().is_ident("message"))
}

/// Calls `read` for each name in the list; `read` must consume everything up to the next comma.
fn each_item(
    attribute: &Attribute,
    problems: &mut Problems,
    mut read: impl FnMut(&Ident, ParseStream<'_>, &mut Problems),
) {
    let Meta::List(list) = &attribute.meta else {
        return problems.push(attribute, Problem::NotAList);
    };
    let parsed = list.parse_args_with(|input: ParseStream<'_>| {
        while !input.is_empty() {
            let name = input.call(Ident::parse_any)?;
            read(&name, input, problems);
            input.parse::<Option<Token![,]>>()?;
        }
        Ok(())
    });
    if parsed.is_err() {
        problems.push(attribute, Problem::NotAList);
    }
}

struct Item<'i, 'p> {
    name: &'i Ident,
    input: ParseStream<'i>,
    problems: &'p mut Problems,
}

impl Item<'_, '_> {
    fn read<T: Value>(&mut self, setting: &mut Setting<T>, expected: &'static str) {
        if setting.is_absent() {
            *setting = match self.value(expected) {
                Some(value) => Setting::Given(value),
                None => Setting::Unreadable,
            };
        } else {
            let twice = Problem::Twice(self.name.to_string());
            self.problems.push(self.name, twice);
            skip_item(self.input);
        }
    }

    fn value<T: Value>(&mut self, expected: &'static str) -> Option<T> {
        let name = self.name.to_string();
        if at_end(self.input)
            && let Some(value) = T::of_name()
        {
            return Some(value);
        }
        if self.input.parse::<Token![=]>().is_err() || at_end(self.input) {
            skip_item(self.input);
            let problem = Problem::NoValue { name, expected };
            self.problems.push(self.name, problem);
            return None;
        }
        let ahead = self.input.fork();
        match ahead.parse() {
            Ok(value) if at_end(&ahead) => {
                self.input.advance_to(&ahead);
                Some(value)
            }
            _ => {
                let found = skip_item(self.input);
                let problem = Problem::WrongValue {
                    name,
                    expected,
                    found: shown(&found),
                };
                self.problems.push(found, problem);
                None
            }
        }
    }
}

impl Parse for Aliases {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        if !input.peek(token::Bracket) {
            return Ok(Self(vec![input.parse()?]));
        }
        let list;
        bracketed!(list in input);
        let kinds = Punctuated::<LitStr, Token![,]>::parse_terminated(&list)?;
        Ok(Self(kinds.into_iter().collect()))
    }
}

/// A path without generic arguments, `crate` and `self` included.
pub(crate) struct ModPath(pub(crate) Path);

impl Parse for ModPath {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        input.call(Path::parse_mod_style).map(Self)
    }
}

fn at_end(input: ParseStream<'_>) -> bool {
    input.is_empty() || input.peek(Token![,])
}

/// Skips to the next comma and returns the skipped tokens.
fn skip_item(input: ParseStream<'_>) -> TokenStream {
    let mut skipped = Vec::new();
    while !at_end(input) {
        match input.parse::<proc_macro2::TokenTree>() {
            Ok(tree) => skipped.push(tree),
            Err(_) => break,
        }
    }
    skipped.into_iter().collect()
}

fn shown(tokens: &TokenStream) -> String {
    format!("`{tokens}`")
}

fn listed(names: &[&str]) -> String {
    let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}
