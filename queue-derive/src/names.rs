use syn::ext::IdentExt as _;
use syn::{Attribute, Variant};

use crate::attr;

/// A type's name in kebab case: `HTTPRequest` is `http-request`, `SliceRequestV2` is
/// `slice-request-v2`.
///
/// A word starts at an upper-case letter after anything else, and at the last upper-case letter
/// before a lower-case one. Digits belong to the word before them.
pub(crate) fn kebab_case(name: &str) -> String {
    let chars: Vec<char> = name.chars().collect();
    let mut kebab = String::with_capacity(name.len() + 4);
    for (at, &c) in chars.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| chars[before]);
        let after = chars.get(at + 1);
        let starts_word = c.is_uppercase()
            && before.is_some_and(|before| {
                !before.is_uppercase() || after.is_some_and(|after| after.is_lowercase())
            });
        if (starts_word || c == '_') && !kebab.is_empty() && !kebab.ends_with('-') {
            kebab.push('-');
        }
        if c != '_' {
            kebab.extend(c.to_lowercase());
        }
    }
    kebab.truncate(kebab.trim_end_matches('-').len());
    kebab
}

/// Returns the name that serde writes for a variant of the enum with these attributes.
pub(crate) fn name_of_variant(on_enum: &[Attribute], variant: &Variant) -> String {
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

/// The nearest known name, if at most two edits away.
pub(crate) fn nearest<'n>(unknown: &str, known: &[&'n str]) -> Option<&'n str> {
    known
        .iter()
        .map(|known| (edits(unknown, known), *known))
        .filter(|(distance, known)| *distance <= 2 && *distance < known.len() / 2)
        .min()
        .map(|(_, known)| known)
}

/// The Levenshtein distance.
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::kebab_case;

    #[test]
    fn words_are_found() {
        for (name, kebab) in [
            ("Order", "order"),
            ("SliceRequest", "slice-request"),
            ("SliceRequestV2", "slice-request-v2"),
            ("V2", "v2"),
            ("HTTPRequest", "http-request"),
            ("ParseHTTP", "parse-http"),
            ("HTTP2Request", "http2-request"),
            ("HTTP", "http"),
            ("IOError", "io-error"),
            ("Int32Value", "int32-value"),
            ("OAuth2Token", "o-auth2-token"),
            ("A", "a"),
            ("AB", "ab"),
            ("ABc", "a-bc"),
            ("_Private", "private"),
            ("Snake_Case", "snake-case"),
            ("Two__Dashes_", "two-dashes"),
            ("SHOUTING_CASE", "shouting-case"),
            ("lower", "lower"),
            ("GrößeÄndern", "größe-ändern"),
            ("__", ""),
        ] {
            assert_eq!(kebab_case(name), kebab, "{name}");
        }
    }
}
