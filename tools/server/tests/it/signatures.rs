//! Who is let in by a shared access signature, and to what.

use http::Method;
use jiff::SignedDuration;
use queue_azure_wire::sign::AccountKey;
use queue_core::clock::Clock as _;

use crate::fixture::{ACCOUNT, Fixture, KEY, Request, code_of, status_of};

const VERSION: &str = "2026-04-06";

fn signature(text: &str) -> String {
    let signature = AccountKey::decode(KEY).expect("a key").signature(text);
    signature
        .replace('+', "%2B")
        .replace('/', "%2F")
        .replace('=', "%3D")
}

/// The signature of a queue: its parameters `sp`, `st`, `se`, `si`, `sip`, `spr`.
pub(crate) fn of_queue(queue: &str, parts: [&str; 6]) -> String {
    let [sp, st, se, si, sip, spr] = parts;
    let text = format!("{sp}\n{st}\n{se}\n/queue/{ACCOUNT}/{queue}\n{si}\n{sip}\n{spr}\n{VERSION}");
    let names = ["sp", "st", "se", "si", "sip", "spr"];
    let given = names
        .iter()
        .zip(parts)
        .filter(|(_, value)| !value.is_empty());
    let given: String = given
        .map(|(name, value)| format!("&{name}={value}"))
        .collect();
    format!("sv={VERSION}{given}&sig={}", signature(&text))
}

/// The signature of an account: its parameters `sp`, `ss`, `srt`, `se`.
fn of_account([sp, ss, srt, se]: [&str; 4]) -> String {
    let text = format!("{ACCOUNT}\n{sp}\n{ss}\n{srt}\n\n{se}\n\n\n{VERSION}\n\n");
    format!(
        "sv={VERSION}&sp={sp}&ss={ss}&srt={srt}&se={se}&sig={}",
        signature(&text)
    )
}

async fn answered(fixture: &Fixture, verb: Method, target: &str, sas: &str) -> (u16, String) {
    let mark = if target.contains('?') { '&' } else { '?' };
    let request = Request::new(verb.clone(), &format!("{target}{mark}{sas}"));
    let request = if verb == Method::POST {
        request.message("text")
    } else {
        request
    };
    let answer = fixture.send(&request).await;
    (status_of(&answer), code_of(&answer).to_owned())
}

fn tomorrow(fixture: &Fixture) -> String {
    let at = fixture.clock.now() + SignedDuration::from_hours(24);
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[tokio::test]
async fn a_signature_of_a_queue_permits_what_it_says_there() {
    let fixture = Fixture::with_queue("orders").await;
    fixture
        .ask(Request::new(Method::PUT, "/letters"), 201)
        .await;
    let end = tomorrow(&fixture);
    let adds = of_queue("orders", ["a", "", &end, "", "", ""]);
    let (post, get) = (Method::POST, Method::GET);
    let messages = "/orders/messages";
    let mismatch = (403, "AuthorizationPermissionMismatch".to_owned());
    let failed = (403, "AuthenticationFailed".to_owned());
    assert_eq!(
        answered(&fixture, post.clone(), messages, &adds).await.0,
        201
    );
    assert_eq!(
        answered(&fixture, get.clone(), messages, &adds).await,
        mismatch
    );
    assert_eq!(
        answered(&fixture, Method::DELETE, messages, &adds).await,
        mismatch
    );
    assert_eq!(
        answered(&fixture, get.clone(), "/orders?comp=acl", &adds).await,
        mismatch
    );
    assert_eq!(
        answered(&fixture, post.clone(), "/letters/messages", &adds).await,
        failed
    );
    let reads = of_queue("orders", ["rp", "", &end, "", "", ""]);
    assert_eq!(
        answered(&fixture, get.clone(), "/orders?comp=metadata", &reads)
            .await
            .0,
        200
    );
    assert_eq!(
        answered(&fixture, get.clone(), messages, &reads).await.0,
        200
    );
    // What was not signed, or says more than was.
    let more = adds.replace("sp=a", "sp=ap");
    assert_eq!(
        answered(&fixture, get.clone(), messages, &more).await,
        failed
    );
    let longer = format!("{adds}&st=2020-01-01");
    assert_eq!(
        answered(&fixture, post.clone(), messages, &longer).await,
        failed
    );
    let twice = format!("{adds}&sp=p");
    let (status, code) = answered(&fixture, post, messages, &twice).await;
    assert_eq!((status, &*code), (400, "InvalidQueryParameterValue"));
}

#[tokio::test]
async fn a_signature_holds_for_its_time_its_addresses_and_its_protocol() {
    let fixture = Fixture::with_queue("orders").await;
    let now = fixture.clock.now();
    let at = |hours| {
        (now + SignedDuration::from_hours(hours))
            .strftime("%Y-%m-%dT%H:%MZ")
            .to_string()
    };
    let failed = "AuthenticationFailed";
    for (st, se, sip, spr, expected) in [
        ("", at(1), "", "", "none"),
        ("", at(-1), "", "", failed),
        (&*at(2), at(3), "", "", failed),
        (&*at(-2), at(3), "", "", "none"),
        ("", String::new(), "", "", failed),
        ("", "tomorrow".to_owned(), "", "", failed),
        ("", at(1), "127.0.0.1", "", "none"),
        ("", at(1), "127.0.0.0-127.0.0.9", "", "none"),
        ("", at(1), "10.0.0.1", "", "AuthorizationSourceIPMismatch"),
        ("", at(1), "", "https,http", "none"),
        ("", at(1), "", "https", "AuthorizationProtocolMismatch"),
    ] {
        let sas = of_queue("orders", ["r", st, &se, "", sip, spr]);
        let (_, code) = answered(&fixture, Method::GET, "/orders?comp=metadata", &sas).await;
        assert_eq!(code, expected, "{sas}");
    }
}

#[tokio::test]
async fn a_stored_policy_permits_until_it_is_gone() {
    let fixture = Fixture::with_queue("orders").await;
    let (set, end) = (
        Request::new(Method::PUT, "/orders?comp=acl"),
        tomorrow(&fixture),
    );
    let policy = format!(
        "<SignedIdentifiers><SignedIdentifier><Id>readers</Id><AccessPolicy><Expiry>{end}</Expiry><Permission>r</Permission></AccessPolicy></SignedIdentifier></SignedIdentifiers>"
    );
    fixture.ask(set.clone().body(policy), 204).await;
    let follows = of_queue("orders", ["", "", "", "readers", "", ""]);
    let metadata = "/orders?comp=metadata";
    assert_eq!(
        answered(&fixture, Method::GET, metadata, &follows).await.0,
        200
    );
    let (status, _) = answered(&fixture, Method::GET, "/orders/messages", &follows).await;
    assert_eq!(status, 403, "it permits to read");
    let both = of_queue("orders", ["rp", "", "", "readers", "", ""]);
    assert_eq!(
        answered(&fixture, Method::GET, metadata, &both).await.0,
        403
    );
    let unknown = of_queue("orders", ["", "", "", "writers", "", ""]);
    assert_eq!(
        answered(&fixture, Method::GET, metadata, &unknown).await.0,
        403
    );
    fixture.ask(set.body("<SignedIdentifiers/>"), 204).await;
    assert_eq!(
        answered(&fixture, Method::GET, metadata, &follows).await.0,
        403
    );
}

#[tokio::test]
async fn a_signature_of_an_account_permits_by_service_and_resource() {
    let fixture = Fixture::with_queue("orders").await;
    let end = tomorrow(&fixture);
    let messages = "/orders/messages";
    for (parts, verb, target, expected) in [
        (["l", "q", "s", &end], Method::GET, "/?comp=list", "none"),
        (
            ["l", "b", "s", &end],
            Method::GET,
            "/?comp=list",
            "AuthorizationServiceMismatch",
        ),
        (
            ["l", "q", "co", &end],
            Method::GET,
            "/?comp=list",
            "AuthorizationResourceTypeMismatch",
        ),
        (
            ["r", "q", "s", &end],
            Method::GET,
            "/?comp=list",
            "AuthorizationPermissionMismatch",
        ),
        (["c", "qb", "c", &end], Method::PUT, "/letters", "none"),
        (["a", "q", "o", &end], Method::POST, messages, "none"),
        (["p", "q", "o", &end], Method::GET, messages, "none"),
        (["d", "q", "o", &end], Method::DELETE, messages, "none"),
        (
            ["rwdlacup", "q", "sco", &end],
            Method::GET,
            "/orders?comp=acl",
            "AuthorizationFailure",
        ),
    ] {
        let sas = of_account(parts);
        let (_, code) = answered(&fixture, verb, target, &sas).await;
        assert_eq!(code, expected, "{target} {parts:?}");
    }
}
