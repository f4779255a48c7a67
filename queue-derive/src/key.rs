use quote::ToTokens as _;
use syn::{GenericArgument, PathArguments, Type};

use crate::ast::{Input, Mark};
use crate::attr;
use crate::problem::{Problem, Problems};

/// Standard containers that serialize their contents, so that a float inside is a float in the key.
/// Types not listed are checked by value when the key is made.
const CONTAINERS: [&str; 18] = [
    "Arc",
    "BTreeMap",
    "BTreeSet",
    "Box",
    "Cell",
    "Cow",
    "HashMap",
    "LinkedList",
    "Mutex",
    "NonZero",
    "Option",
    "Rc",
    "RefCell",
    "Result",
    "Saturating",
    "Vec",
    "VecDeque",
    "Wrapping",
];

/// Checks that equal messages have equal keys and groups, both when sent and when received.
pub(crate) fn check(input: &Input<'_>, problems: &mut Problems) {
    for mark in Mark::ALL {
        for field in input.marked(mark) {
            let shown = shown_type(field.ty());
            let problem = match find(field.ty()) {
                Some(Inexact::Float) => Problem::FloatKey(shown, mark),
                Some(Inexact::Wide) => Problem::WideKey(shown, mark),
                Some(Inexact::Unordered) => Problem::UnorderedKey(shown, mark),
                None => continue,
            };
            problems.push(field.ty(), problem);
        }
    }
    for field in input.key_fields() {
        if let Some(skip) = attr::serde_skip(&field.original.attrs) {
            problems.push(&skip, Problem::SkippedKey(skip.to_string()));
        }
    }
    if let (Some(scope), None) = (
        input.attributes.key_scope.given(),
        input.key_fields().next(),
    ) {
        problems.push(scope, Problem::ScopeWithoutKey);
    }
}

enum Inexact {
    Float,
    /// An integer of more than 64 bits.
    Wide,
    Unordered,
}

/// Finds why values of the type have no canonical form, as far as its syntax tells.
fn find(ty: &Type) -> Option<Inexact> {
    match ty {
        Type::Array(array) => find(&array.elem),
        Type::Slice(slice) => find(&slice.elem),
        Type::Reference(reference) => find(&reference.elem),
        Type::Paren(paren) => find(&paren.elem),
        Type::Group(group) => find(&group.elem),
        Type::Tuple(tuple) => tuple.elems.iter().find_map(find),
        Type::Path(path) => {
            let last = path.path.segments.last()?;
            let name = last.ident.to_string();
            match name.as_str() {
                "f32" | "f64" => return Some(Inexact::Float),
                "u128" | "i128" | "NonZeroU128" | "NonZeroI128" => return Some(Inexact::Wide),
                "HashSet" | "BinaryHeap" => return Some(Inexact::Unordered),
                name if !CONTAINERS.contains(&name) => return None,
                _ => {}
            }
            let PathArguments::AngleBracketed(arguments) = &last.arguments else {
                return None;
            };
            arguments.args.iter().find_map(|argument| match argument {
                GenericArgument::Type(ty) => find(ty),
                _ => None,
            })
        }
        _ => None,
    }
}

/// The type much as the user wrote it.
pub(crate) fn shown_type(ty: &Type) -> String {
    let text = ty.to_token_stream().to_string();
    [
        (" < ", "<"),
        (" >", ">"),
        (" ,", ","),
        (" :: ", "::"),
        (" ;", ";"),
    ]
    .into_iter()
    .fold(text, |text, (from, to)| text.replace(from, to))
}
