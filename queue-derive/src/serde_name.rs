use syn::ext::IdentExt as _;
use syn::{Attribute, Variant};

use crate::attr;

/// Returns the name that serde writes for a variant of the enum with these attributes.
pub(crate) fn of_variant(on_enum: &[Attribute], variant: &Variant) -> String {
    if let Some(name) = attr::serde_written(&variant.attrs, "rename") {
        return name.value();
    }
    let name = variant.ident.unraw().to_string();
    match attr::serde_written(on_enum, "rename_all") {
        Some(rule) => renamed(&name, &rule.value()),
        None => name,
    }
}

/// Applies a rule of `#[serde(rename_all = "…")]`. serde reports a rule that it does not know.
fn renamed(name: &str, rule: &str) -> String {
    match rule {
        "lowercase" => name.to_ascii_lowercase(),
        "UPPERCASE" => name.to_ascii_uppercase(),
        "camelCase" => {
            let mut chars = name.chars();
            let first = chars.next().map(|first| first.to_ascii_lowercase());
            first.into_iter().chain(chars).collect()
        }
        "snake_case" => separated(name, '_'),
        "SCREAMING_SNAKE_CASE" => separated(name, '_').to_ascii_uppercase(),
        "kebab-case" => separated(name, '-'),
        "SCREAMING-KEBAB-CASE" => separated(name, '-').to_ascii_uppercase(),
        _ => name.to_owned(),
    }
}

/// Separates the words of a name in camel case, in lower case.
fn separated(name: &str, separator: char) -> String {
    let mut words = String::new();
    for (at, c) in name.char_indices() {
        if at > 0 && c.is_uppercase() {
            words.push(separator);
        }
        words.push(match c {
            // An underscore in the name is a separator, too.
            '_' => separator,
            c => c.to_ascii_lowercase(),
        });
    }
    words
}
