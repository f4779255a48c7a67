use super::*;

fn parsed(text: &str) -> Account {
    Account::parse(text).unwrap_or_else(|problem| panic!("{text}: {problem}"))
}

fn refused(text: &str) -> String {
    let problem = Account::parse(text).map(|_| ()).expect_err(text);
    let told = problem.to_string();
    assert!(!told.contains("s3cret"), "{told}");
    told
}

fn place(text: &str) -> (String, EndpointKind, &'static str) {
    let account = parsed(text);
    let shown = format!("{account:?}");
    assert!(!shown.contains("s3cret"), "{shown}");
    let credential = match account.credential {
        Credential::Key(_) => "key",
        Credential::Signature(_) => "sas",
        Credential::Entra => "entra",
    };
    (account.endpoint.to_string(), account.kind, credential)
}

#[test]
fn every_form_is_accepted() {
    use EndpointKind::{Emulator, Service};
    let cases = [
        (
            "UseDevelopmentStorage=true",
            ("http://127.0.0.1:10001/devstoreaccount1", Emulator, "key"),
        ),
        (
            "UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://azurite/",
            ("http://azurite:10001/devstoreaccount1", Emulator, "key"),
        ),
        (
            "DefaultEndpointsProtocol=https;AccountName=acct;AccountKey=czNjcmV0;EndpointSuffix=core.windows.net",
            ("https://acct.queue.core.windows.net/", Service, "key"),
        ),
        (
            "AccountName=acct;AccountKey=czNjcmV0;EndpointSuffix=core.chinacloudapi.cn",
            ("https://acct.queue.core.chinacloudapi.cn/", Service, "key"),
        ),
        (
            "AccountName=a1;AccountKey=czNjcmV0;QueueEndpoint=http://127.0.0.1:4/a1;",
            ("http://127.0.0.1:4/a1", Emulator, "key"),
        ),
        (
            "AccountName=a1;AccountKey=czNjcmV0;QueueEndpoint=https://queues.example.com",
            ("https://queues.example.com/", Service, "key"),
        ),
        (
            "QueueEndpoint=https://acct.queue.core.windows.net/;SharedAccessSignature=sv=1&sig=s3cret",
            ("https://acct.queue.core.windows.net/", Service, "sas"),
        ),
        (
            "https://acct.queue.core.windows.net/?sv=1&sig=s3cret",
            ("https://acct.queue.core.windows.net/", Service, "sas"),
        ),
        (
            "https://acct.queue.core.windows.net/orders?sv=1&sig=s3cret",
            ("https://acct.queue.core.windows.net/", Service, "sas"),
        ),
        (
            "http://localhost:10001/a1/orders?sv=1&sig=s3cret",
            ("http://localhost:10001/a1", Emulator, "sas"),
        ),
        (
            "http://[::1]:10001/a1?sig=s3cret",
            ("http://[::1]:10001/a1", Emulator, "sas"),
        ),
        (
            "http://azurite:10001/a1?sig=s3cret",
            ("http://azurite:10001/a1", Emulator, "sas"),
        ),
        (
            "http://a1.queue.localhost:10001/?sv=1&sig=s3cret",
            ("http://a1.queue.localhost:10001/", Emulator, "sas"),
        ),
        (
            "azure://acct",
            ("https://acct.queue.core.windows.net/", Service, "entra"),
        ),
        (
            "azure://acct.queue.core.usgovcloudapi.net/",
            (
                "https://acct.queue.core.usgovcloudapi.net/",
                Service,
                "entra",
            ),
        ),
    ];
    for (text, (endpoint, kind, credential)) in cases {
        assert_eq!(
            place(text),
            (endpoint.to_owned(), kind, credential),
            "{text}"
        );
    }
}

#[test]
fn a_signature_is_escaped_as_in_a_url() {
    let account = parsed(
        "QueueEndpoint=https://acct.queue.core.windows.net/;SharedAccessSignature=?sv=a b&sig=é+%2F=",
    );
    let Credential::Signature(signature) = account.credential else {
        panic!("{account:?}");
    };
    assert_eq!(signature.secret(), "sv=a%20b&sig=%C3%A9+%2F=");
}

/// A path that would be dropped belongs to another endpoint than the one that would be used.
#[test]
fn paths_are_used_or_refused() {
    let key = "AccountName=a1;AccountKey=czNjcmV0;QueueEndpoint=";
    for endpoint in [
        "https://queues.example.com/s3cret",
        "https://a1.queue.core.windows.net/s3cret/",
        "https://a1.queue.core.windows.net//s3cret",
        "https://queues.example.com/a1/s3cret",
        "http://127.0.0.1:10001/a1/s3cret",
        "http://a1.queue.localhost:10001/s3cret",
    ] {
        let told = refused(&format!("{key}{endpoint}"));
        assert!(told.contains("path"), "{endpoint}: {told}");
    }
    for (url, account) in [
        (
            "https://acct.queue.core.windows.net",
            "azure://acct.queue.core.windows.net",
        ),
        (
            "http://127.0.0.1:10001/a1",
            "QueueEndpoint=http://127.0.0.1:10001/a1",
        ),
    ] {
        assert!(refused(&format!("{url}/orders/s3cret?sig=s3cret")).contains("path"));
        assert!(refused(&format!("{account}/orders")).contains("path"));
    }
    for proxy in [
        "http://azurite:8080",
        "http://azurite/s3cret",
        "http://u:s3cret@azurite",
        "ftp://azurite",
        "http://azurite?s3cret",
    ] {
        let told = refused(&format!(
            "UseDevelopmentStorage=true;DevelopmentStorageProxyUri={proxy}"
        ));
        assert!(told.contains("http://HOST"), "{proxy}: {told}");
    }
}

#[test]
fn errors_name_the_problem_without_the_secret() {
    let cases = [
        ("AccountName=acct", "neither AccountKey nor"),
        ("AccountKey=czNjcmV0", "neither AccountName nor"),
        (
            "AccountName=acct;AccountKey=s3cret!",
            "AccountKey is not Base64",
        ),
        ("AccountName=acct;AccountKey=", "AccountKey is empty"),
        ("AccountName=a/s3cret;AccountKey=czNjcmV0", "lower-case"),
        (
            "AccountName=a;AccountKey=czNjcmV0;SharedAccessSignature=sig=s3cret",
            "both",
        ),
        ("AccountName=a;SharedAccessSignature=sv=s3cret", "no `sig`"),
        (
            "QueueEndpoint=s3cret;SharedAccessSignature=sig=s3cret",
            "not a URL",
        ),
        (
            "QueueEndpoint=ftp://s3cret/a;SharedAccessSignature=sig=s3cret",
            "https or http",
        ),
        (
            "https://user:s3cret@acct.queue.core.windows.net/?sig=s3cret",
            "user information",
        ),
        (
            "http://acct.queue.core.windows.net/?sig=s3cret",
            "over http",
        ),
        ("http://10.0.0.5:10001/a1?sig=s3cret", "over http"),
        ("http://203.0.113.7/a1/orders?sig=s3cret", "over http"),
        ("http://[2001:db8::1]/a1?sig=s3cret", "over http"),
        ("http://[::ffff:127.0.0.1]/a1?sig=s3cret", "over http"),
        (
            "AccountName=a1;QueueEndpoint=http://queues.example.com/a1;SharedAccessSignature=sig=s3cret",
            "over http",
        ),
        (
            "AccountName=a1;QueueEndpoint=http://203.0.113.7/a1?sig=s3cret",
            "over http",
        ),
        (
            "QueueEndpoint=http://127.0.0.1:1/a1;BlobEndpoint=http://203.0.113.7/a1;SharedAccessSignature=sig=s3cret",
            "over http",
        ),
        ("https://acct.queue.core.windows.net/", "azure://ACCOUNT"),
        (
            "http://127.0.0.1:10001/?sig=s3cret",
            "must end with the account",
        ),
        ("azure://", "lower-case"),
        ("azure://acct?sig=s3cret", "lower-case"),
        (
            "azure://acct.queue.core.windows.net?sig=s3cret",
            "takes no query",
        ),
        ("UseDevelopmentStorage=true;AccountKey=s3cret", "only with"),
        (
            "UseDevelopmentStorage=true;DevelopmentStorageProxyUri=s3cret",
            "ProxyUri",
        ),
        (
            "UseDevelopmentStorage=true;EndpointSuffix=s3cret",
            "only with",
        ),
        (
            "UseDevelopmentStorage=true;DefaultEndpointsProtocol=https",
            "only with",
        ),
        (
            "DevelopmentStorageProxyUri=http://s3cret;AccountName=a;AccountKey=czNjcmV0",
            "requires UseDevelopmentStorage",
        ),
        (
            "QueueEndpoint=https://a.example/?sig=s3cret;AccountName=a;AccountKey=czNjcmV0",
            "must not have a query",
        ),
        (
            "QueueEndpoint=https://a.example/?sig=s3cret;SharedAccessSignature=sig=s3cret",
            "must not have a query",
        ),
        (
            "https://acct.queue.core.windows.net/?sig=s3cret#s3cret",
            "must not have a fragment",
        ),
    ];
    for (text, expected) in cases {
        let problem = refused(text);
        assert!(problem.contains(expected), "{text}: {problem}");
    }
}

#[test]
fn the_blobs_are_in_the_same_account() {
    let cases = [
        (
            "UseDevelopmentStorage=true",
            Some("http://127.0.0.1:10000/devstoreaccount1"),
        ),
        (
            "AccountName=acct;AccountKey=czNjcmV0",
            Some("https://acct.blob.core.windows.net/"),
        ),
        (
            "https://acct.queue.core.windows.net/?sv=1&sig=s3cret",
            Some("https://acct.blob.core.windows.net/"),
        ),
        ("azure://acct", Some("https://acct.blob.core.windows.net/")),
        (
            "AccountName=a1;AccountKey=czNjcmV0;QueueEndpoint=http://127.0.0.1:4/a1;BlobEndpoint=http://127.0.0.1:3/a1",
            Some("http://127.0.0.1:3/a1"),
        ),
        (
            "AccountName=a1;AccountKey=czNjcmV0;QueueEndpoint=http://127.0.0.1:4/a1",
            None,
        ),
        (
            "AccountName=a1;AccountKey=czNjcmV0;QueueEndpoint=https://queues.example.com",
            None,
        ),
    ];
    for (text, expected) in cases {
        let blobs = parsed(text).blobs;
        assert_eq!(blobs.as_ref().map(Url::as_str), expected, "{text}");
    }
}

fn problem_of(text: &str) -> String {
    let problem = Settings::parse(text).expect_err("it is rejected");
    let text = format!("{problem} {problem:?}");
    assert!(!text.contains("s3cret"), "{text}");
    text
}

#[test]
fn settings_are_parsed_in_any_case_and_order() {
    let settings = Settings::parse(
        "accountkey=a2V5PT0=; AccountName=acct ;;DefaultEndpointsProtocol=HTTPS;\
         TableEndpoint=https://t/;EndpointSuffix=core.windows.net;",
    );
    let settings = settings.expect("allowed");
    assert_eq!(settings.account.as_deref(), Some("acct"));
    assert_eq!(settings.key, Some(Secret::new("a2V5PT0=")));
    assert_eq!(settings.protocol.as_deref(), Some("https"));
    assert_eq!(settings.suffix.as_deref(), Some("core.windows.net"));
}

#[test]
fn errors_name_the_position_and_no_value() {
    assert!(problem_of("AccountName=a;s3cret").contains("setting 2"));
    assert!(problem_of("AccountName=a;s3cret=b").contains("setting 2"));
    assert!(problem_of("AccountKey=s3cret;accountkey=s3cret").contains("setting 2"));
    assert!(problem_of("DefaultEndpointsProtocol=s3cret").contains("must be"));
    assert!(problem_of("UseDevelopmentStorage=s3cret").contains("must be"));
}
