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
        let (fields, variants): (&[_], &[_]) = match &self.body {
            Body::Struct(fields) => (fields, &[]),
            Body::Enum(variants) => (&[], variants),
            Body::Union => (&[], &[]),
        };
        let of_variants = variants.iter().flat_map(|variant| &variant.fields);
        fields
            .iter()
            .chain(of_variants)
            .filter(|field| field.is_key)
    }
}

impl<'a> Field<'a> {
    fn read_all(fields: &'a Fields, problems: &mut Problems) -> Vec<Self> {
        fields
            .iter()
            .enumerate()
            .map(|(at, original)| Self {
                original,
                member: match &original.ident {
                    Some(name) => Member::Named(name.clone()),
                    None => Member::Unnamed(Index::from(at)),
                },
                is_key: attr::read_key(&original.attrs, problems).is_some(),
            })
            .collect()
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
