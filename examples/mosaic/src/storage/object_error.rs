//! Errors of object stores: what they are about, and their text without secrets.

use std::error::Error;

/// Whether an error is about the container rather than the blob: `ContainerNotFound`,
/// `ContainerBeingDeleted`, `ContainerDisabled`.
pub(crate) fn is_about_container(error: &object_store::Error) -> bool {
    error.to_string().contains("<Code>Container")
}

/// Returns the text of an error and its causes. Of a service's response it keeps the error code only,
/// and it removes signatures from URLs: the rest may repeat what a request was signed with.
pub(crate) fn describe(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let inner = error.to_string();
        if !text.contains(&inner) {
            text = format!("{text}: {inner}");
        }
        cause = error.source();
    }
    let code = text
        .split_once("<Code>")
        .and_then(|(_, rest)| rest.split_once("</Code>"))
        .map(|(code, _)| code.to_owned());
    if let Some(body) = text.find("<?xml").or_else(|| text.find("<Error>")) {
        text.truncate(body);
        text.push_str(
            code.as_deref()
                .unwrap_or("a response without an error code"),
        );
    }
    let mut parts = text.split("sig=");
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c != '&' && !c.is_whitespace());
        clean = format!("{clean}sig=…{rest}");
    }
    clean.replace('\u{feff}', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_reduced_to_their_code_and_signatures_removed() {
        let body = "\u{feff}<?xml version=\"1.0\"?><Error><Code>AuthenticationFailed</Code><Message>the \
                    MAC signature found, s3cret</Message></Error>";
        for (said, expected) in [
            (
                format!("status 403: {body}"),
                "status 403: AuthenticationFailed",
            ),
            (
                "get http://h/c?sv=1&sig=s3cret&se=2 in 1 s".to_owned(),
                "get http://h/c?sv=1&sig=…&se=2 in 1 s",
            ),
            ("refused".to_owned(), "refused"),
        ] {
            let error = object_store::Error::Generic {
                store: "test",
                source: said.into(),
            };
            assert_eq!(describe(&error), format!("Generic test error: {expected}"));
        }
    }
}
