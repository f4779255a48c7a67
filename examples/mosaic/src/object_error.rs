//! What object stores say, fit to be passed on.

use std::error::Error;

/// Whether a storage account means the container rather than the blob: `ContainerNotFound`,
/// `ContainerBeingDeleted`, `ContainerDisabled`.
pub(crate) fn is_about_container(error: &object_store::Error) -> bool {
    error.to_string().contains("<Code>Container")
}

/// What an object store says with all its causes, but of a service's answer only the code, and of a
/// URL no signature: the rest may repeat what a request was signed with.
pub(crate) fn describe(error: &(dyn Error + 'static)) -> String {
    let mut told = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !told.contains(&text) {
            told = format!("{told}: {text}");
        }
        cause = error.source();
    }
    let code = told
        .split_once("<Code>")
        .and_then(|(_, rest)| rest.split_once("</Code>"))
        .map(|(code, _)| code.to_owned());
    if let Some(body) = told.find("<?xml").or_else(|| told.find("<Error>")) {
        told.truncate(body);
        told.push_str(code.as_deref().unwrap_or("an answer without a code"));
    }
    let mut parts = told.split("sig=");
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
    fn what_a_service_says_is_told_by_its_code_and_without_signatures() {
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
