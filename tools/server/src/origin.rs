//! Which pages a browser may send requests from.
//!
//! A GET receives messages here. A browser sends a GET for a page of any origin without asking before, and for a picture
//! without saying from where, so each request that a browser marks as one from another site is refused, unless the account's
//! rules of CORS name the origin of its page.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, HeaderName, ORIGIN, VARY,
};
use http::{HeaderMap, StatusCode};
use queue_azure_wire::code::Code;

use crate::account::Account;
use crate::answer::{Answer, Refusal};
use crate::settings::{self, CorsRule};

/// The page that a request is from, if a rule names its origin.
pub(crate) struct Allowed {
    origin: String,
    rule: CorsRule,
}

/// Checks where a browser sends a request from.
///
/// # Errors
/// If a page of another site does, and no rule names it.
pub(crate) async fn check(
    account: &Account,
    verb: &str,
    headers: &HeaderMap,
) -> Result<Option<Allowed>, Refusal> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let origin = text(ORIGIN);
    let site = text(HeaderName::from_static("sec-fetch-site"));
    if origin.is_none() && matches!(site, None | Some("none" | "same-origin")) {
        return Ok(None);
    }
    let Some(origin) = origin else {
        // A picture, a script, a frame.
        return Err(foreign());
    };
    let rules = settings::cors(account).await?;
    let rule = rules.into_iter().find(|rule| rule.names(origin, verb));
    let rule = rule.ok_or_else(foreign)?;
    let origin = origin.to_owned();
    Ok(Some(Allowed { origin, rule }))
}

fn foreign() -> Refusal {
    let detail = "a page of another site asks, and no rule of CORS names it";
    Refusal::with_detail(Code::AuthorizationFailure, detail)
}

/// Answers a browser that asks whether a page may send a request.
pub(crate) async fn preflight(account: &Account, headers: &HeaderMap) -> Result<Answer, Refusal> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let (Some(origin), Some(verb)) = (text(ORIGIN), text(ACCESS_CONTROL_REQUEST_METHOD)) else {
        return Err(Refusal::with_detail(
            Code::InvalidHeaderValue,
            "Origin or Access-Control-Request-Method is missing",
        ));
    };
    let wanted = text(ACCESS_CONTROL_REQUEST_HEADERS).unwrap_or_default();
    let rules = settings::cors(account).await?;
    let rule = rules
        .iter()
        .find(|rule| rule.names(origin, verb) && rule.allows(wanted));
    let rule = rule.ok_or(Code::CorsPreflightFailure)?;
    let mut answer = Answer::empty(StatusCode::OK);
    answer.set(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    answer.set(ACCESS_CONTROL_ALLOW_METHODS, verb);
    if !wanted.is_empty() {
        answer.set(ACCESS_CONTROL_ALLOW_HEADERS, wanted);
    }
    answer.set(ACCESS_CONTROL_MAX_AGE, &rule.max_age.to_string());
    answer.set(ACCESS_CONTROL_ALLOW_CREDENTIALS, "true");
    answer.set(VARY, "Origin");
    Ok(answer)
}

impl Allowed {
    /// Tells the browser that the page may read the answer.
    pub(crate) fn mark(&self, answer: &mut Answer) {
        answer.set(ACCESS_CONTROL_ALLOW_ORIGIN, &self.origin);
        answer.set(
            ACCESS_CONTROL_EXPOSE_HEADERS,
            &self.rule.exposed_headers.join(","),
        );
        answer.set(ACCESS_CONTROL_ALLOW_CREDENTIALS, "true");
        answer.set(VARY, "Origin");
    }
}

impl CorsRule {
    fn names(&self, origin: &str, verb: &str) -> bool {
        let is_origin = |one: &String| one == "*" || one == origin;
        let is_verb = |one: &String| one.eq_ignore_ascii_case(verb);
        self.origins.iter().any(is_origin) && self.methods.iter().any(is_verb)
    }

    /// Whether all of these headers are allowed: by their names, or by what they begin with.
    fn allows(&self, wanted: &str) -> bool {
        let is_allowed = |name: &str| {
            let name = name.to_ascii_lowercase();
            self.allowed_headers.iter().any(|allowed| {
                let allowed = allowed.to_ascii_lowercase();
                match allowed.strip_suffix('*') {
                    Some(start) => name.starts_with(start),
                    None => name == allowed,
                }
            })
        };
        let wanted = wanted.split(',').map(str::trim);
        wanted.filter(|name| !name.is_empty()).all(is_allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_allows_headers_by_their_names_and_beginnings() {
        let rule = CorsRule {
            allowed_headers: vec!["Content-Type".to_owned(), "x-ms-*".to_owned()],
            ..CorsRule::default()
        };
        for (wanted, expected) in [
            ("", true),
            ("content-type, X-MS-Date", true),
            ("x-ms-date,authorization", false),
            ("x-m", false),
        ] {
            assert_eq!(rule.allows(wanted), expected, "{wanted}");
        }
    }
}
