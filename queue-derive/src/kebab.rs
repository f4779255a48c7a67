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
