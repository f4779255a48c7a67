use std::fmt;

use syn::{Data, DeriveInput, Fields, Index, Member, Type};

use crate::attr::{self, TypeAttributes};
use crate::problem::{Problem, Problems};

/// The item to derive for, with its attributes parsed.
pub(crate) struct Input<'a> {
    pub(crate) original: &'a DeriveInput,
    pub(crate) attributes: TypeAttributes,
    pub(crate) body: Body<'a>,
}

pub(crate) enum Body<'a> {
    Struct(Vec<Field<'a>>),
    Enum(Vec<Variant<'a>>),
    /// A union, reported as an error already.
    Union,
}

pub(crate) struct Variant<'a> {
    pub(crate) original: &'a syn::Variant,
    pub(crate) fields: Vec<Field<'a>>,
}

pub(crate) struct Field<'a> {
    pub(crate) original: &'a syn::Field,
    pub(crate) member: Member,
    pub(crate) is_key: bool,
    pub(crate) is_group: bool,
}

/// What `#[message(…)]` makes of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    Key,
    Group,
}

impl Mark {
    pub(crate) const ALL: [Self; 2] = [Self::Key, Self::Group];
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key => "key",
            Self::Group => "group",
        })
    }
}

impl<'a> Input<'a> {
    pub(crate) fn read(original: &'a DeriveInput, problems: &mut Problems) -> Self {
        let attributes = TypeAttributes::read(&original.attrs, problems);
        let body = match &original.data {
            Data::Struct(data) => Body::Struct(Field::read_all(&data.fields, problems)),
            Data::Enum(data) => Body::Enum(
                data.variants
                    .iter()
                    .map(|variant| {
                        attr::refuse_on_variant(&variant.attrs, problems);
                        Variant {
                            original: variant,
                            fields: Field::read_all(&variant.fields, problems),
                        }
                    })
                    .collect(),
            ),
            Data::Union(data) => {
                problems.push(data.union_token, Problem::Union);
                Body::Union
            }
        };
        Self {
            original,
            attributes,
            body,
        }
    }

    pub(crate) fn key_fields(&self) -> impl Iterator<Item = &Field<'a>> {
        self.marked(Mark::Key)
    }

    pub(crate) fn marked(&self, mark: Mark) -> impl Iterator<Item = &Field<'a>> {
        let (fields, variants): (&[_], &[_]) = match &self.body {
            Body::Struct(fields) => (fields, &[]),
            Body::Enum(variants) => (&[], variants),
            Body::Union => (&[], &[]),
        };
        let of_variants = variants.iter().flat_map(|variant| &variant.fields);
        fields
            .iter()
            .chain(of_variants)
            .filter(move |field| field.has(mark))
    }
}

impl<'a> Field<'a> {
    fn read_all(fields: &'a Fields, problems: &mut Problems) -> Vec<Self> {
        fields
            .iter()
            .enumerate()
            .map(|(at, original)| {
                let marks = attr::read_marks(&original.attrs, problems);
                Self {
                    original,
                    member: match &original.ident {
                        Some(name) => Member::Named(name.clone()),
                        None => Member::Unnamed(Index::from(at)),
                    },
                    is_key: marks.contains(&Mark::Key),
                    is_group: marks.contains(&Mark::Group),
                }
            })
            .collect()
    }

    pub(crate) fn has(&self, mark: Mark) -> bool {
        match mark {
            Mark::Key => self.is_key,
            Mark::Group => self.is_group,
        }
    }

    pub(crate) fn ty(&self) -> &'a Type {
        &self.original.ty
    }

    /// The field's name for error messages and keys.
    pub(crate) fn name(&self) -> String {
        use syn::ext::IdentExt as _;

        match &self.member {
            Member::Named(name) => name.unraw().to_string(),
            Member::Unnamed(index) => index.index.to_string(),
        }
    }
}
