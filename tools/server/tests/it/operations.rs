//! What each operation answers, beside what the engine for Azure and the SDKs of other languages test.

use http::Method;
use queue_core::backend::Backend as _;
use queue_core::clock::Clock as _;

use crate::fixture::{Fixture, Request, code_of, element};

fn put(target: &str) -> Request {
    Request::new(Method::PUT, target)
}

fn get(target: &str) -> Request {
    Request::new(Method::GET, target)
}

fn post(target: &str, text: &str) -> Request {
    Request::new(Method::POST, target).message(text)
}

#[tokio::test]
async fn a_queue_is_created_once_and_deleted_once() {
    let fixture = Fixture::start().await;
    let create = |value: &str| put("/orders").header("x-ms-meta-Team", value);
    fixture.ask(create("red"), 201).await;
    fixture.ask(create("red"), 204).await;
    let differs = fixture.ask(create("blue"), 409).await;
    assert_eq!(code_of(&differs), "QueueAlreadyExists");
    let metadata = fixture.ask(get("/orders?comp=metadata"), 200).await;
    assert_eq!(metadata.header("x-ms-meta-team"), Some("red"));
    assert_eq!(
        metadata.header("x-ms-approximate-messages-count"),
        Some("0")
    );
    let head = Request::new(Method::HEAD, "/orders?comp=metadata");
    fixture.ask(head, 200).await;
    let replace = put("/orders?comp=metadata").header("x-ms-meta-floor", "3");
    fixture.ask(replace, 204).await;
    let metadata = fixture.ask(get("/orders?comp=metadata"), 200).await;
    assert_eq!(metadata.header("x-ms-meta-team"), None);
    assert_eq!(metadata.header("x-ms-meta-floor"), Some("3"));
    fixture
        .ask(Request::new(Method::DELETE, "/orders"), 204)
        .await;
    let gone = fixture.ask(get("/orders?comp=metadata"), 404).await;
    assert_eq!(code_of(&gone), "QueueNotFound");
}

#[tokio::test]
async fn queues_are_listed_in_pages() {
    let fixture = Fixture::start().await;
    for name in ["b-2", "a-1", "b-1", "b-3"] {
        fixture
            .ask(put(&format!("/{name}")).header("x-ms-meta-name", name), 201)
            .await;
    }
    let page = fixture
        .ask(
            get("/?comp=list&prefix=b&maxresults=2&include=metadata"),
            200,
        )
        .await;
    let body = String::from_utf8_lossy(&page.body).into_owned();
    assert!(
        body.contains("<Name>b-1</Name><Metadata><name>b-1</name></Metadata>"),
        "{body}"
    );
    assert!(
        !body.contains("a-1") && !body.contains("<Name>b-3"),
        "{body}"
    );
    let marker = element(&page, "NextMarker");
    let rest = fixture
        .ask(get(&format!("?comp=list&prefix=b&marker={marker}")), 200)
        .await;
    let body = String::from_utf8_lossy(&rest.body).into_owned();
    assert!(
        body.contains("<Queues><Queue><Name>b-3</Name></Queue></Queues>"),
        "{body}"
    );
    assert_eq!(element(&rest, "NextMarker"), "");
    let refused = fixture.ask(get("?comp=list&maxresults=0"), 400).await;
    assert_eq!(code_of(&refused), "OutOfRangeQueryParameterValue");
}

#[tokio::test]
async fn a_message_is_put_peeked_got_updated_and_deleted() {
    let fixture = Fixture::with_queue("orders").await;
    let text = "a < b & c\r\n\u{1f980}";
    let answer = fixture
        .ask(post("/orders/messages?messagettl=60", text), 201)
        .await;
    let id = element(&answer, "MessageId").to_owned();
    // The receipt of a put is one.
    let receipt = element(&answer, "PopReceipt").to_owned();
    let hide = format!("/orders/messages/{id}?popreceipt={receipt}&visibilitytimeout=5");
    let hidden = fixture.ask(put(&hide), 204).await;
    assert!(hidden.header("x-ms-popreceipt").is_some());
    assert!(hidden.header("x-ms-time-next-visible").is_some());
    let none = fixture.ask(get("/orders/messages"), 200).await;
    assert!(!String::from_utf8_lossy(&none.body).contains("<MessageId>"));
    fixture.clock.advance(std::time::Duration::from_secs(6));

    let peeked = fixture
        .ask(get("/orders/messages?peekonly=true"), 200)
        .await;
    assert_eq!(
        element(&peeked, "MessageText"),
        "a &lt; b &amp; c&#xD;\n\u{1f980}"
    );
    assert_eq!(element(&peeked, "DequeueCount"), "0");
    assert!(!String::from_utf8_lossy(&peeked.body).contains("PopReceipt"));
    let got = fixture
        .ask(get("/orders/messages?visibilitytimeout=10"), 200)
        .await;
    assert_eq!(element(&got, "DequeueCount"), "1");
    let first = element(&got, "PopReceipt").to_owned();
    let update = format!("/orders/messages/{id}?popreceipt={first}&visibilitytimeout=0");
    let updated = fixture.ask(put(&update).message("changed"), 204).await;
    let second = updated
        .header("x-ms-popreceipt")
        .expect("a receipt")
        .to_owned();
    let stale = Request::new(
        Method::DELETE,
        &format!("/orders/messages/{id}?popreceipt={first}"),
    );
    assert_eq!(code_of(&fixture.ask(stale, 404).await), "MessageNotFound");
    let peeked = fixture
        .ask(get("/orders/messages?peekonly=true"), 200)
        .await;
    assert_eq!(element(&peeked, "MessageText"), "changed");
    let delete = Request::new(
        Method::DELETE,
        &format!("/orders/messages/{id}?popreceipt={second}"),
    );
    fixture.ask(delete, 204).await;
    let metadata = fixture.ask(get("/orders?comp=metadata"), 200).await;
    assert_eq!(
        metadata.header("x-ms-approximate-messages-count"),
        Some("0")
    );
}

#[tokio::test]
async fn a_message_expires_and_a_lease_ends() {
    let fixture = Fixture::with_queue("orders").await;
    fixture
        .ask(post("/orders/messages?messagettl=60", "short"), 201)
        .await;
    fixture
        .ask(post("/orders/messages?messagettl=-1", "for ever"), 201)
        .await;
    let got = fixture
        .ask(
            get("/orders/messages?numofmessages=32&visibilitytimeout=10"),
            200,
        )
        .await;
    let body = String::from_utf8_lossy(&got.body).into_owned();
    assert!(body.contains("Fri, 31 Dec 9999 23:59:59 GMT"), "{body}");
    fixture.clock.advance(std::time::Duration::from_secs(11));
    let again = fixture
        .ask(
            get("/orders/messages?numofmessages=32&visibilitytimeout=10"),
            200,
        )
        .await;
    assert_eq!(
        String::from_utf8_lossy(&again.body)
            .matches("<DequeueCount>2<")
            .count(),
        2
    );
    fixture.clock.advance(std::time::Duration::from_secs(50));
    let left = fixture
        .ask(get("/orders/messages?numofmessages=32"), 200)
        .await;
    assert_eq!(element(&left, "MessageText"), "for ever");
    fixture
        .ask(Request::new(Method::DELETE, "/orders/messages"), 204)
        .await;
    fixture.clock.advance(std::time::Duration::from_secs(31));
    let none = fixture.ask(get("/orders/messages"), 200).await;
    assert!(!String::from_utf8_lossy(&none.body).contains("<MessageId>"));
}

#[tokio::test]
async fn parameters_beyond_their_range_are_refused() {
    let fixture = Fixture::with_queue("orders").await;
    let out = "OutOfRangeQueryParameterValue";
    for (request, status, code) in [
        (get("/orders/messages?numofmessages=0"), 400, out),
        (get("/orders/messages?numofmessages=33"), 400, out),
        (get("/orders/messages?visibilitytimeout=0"), 400, out),
        (get("/orders/messages?visibilitytimeout=604801"), 400, out),
        (
            get("/orders/messages?visibilitytimeout=soon"),
            400,
            "InvalidQueryParameterValue",
        ),
        (post("/orders/messages?messagettl=0", "x"), 400, out),
        (post("/orders/messages?messagettl=-2", "x"), 400, out),
        (
            post("/orders/messages?messagettl=5&visibilitytimeout=5", "x"),
            400,
            out,
        ),
        (
            post("/orders/messages", &"x".repeat(65_537)),
            413,
            "RequestBodyTooLarge",
        ),
        (
            Request::new(Method::POST, "/orders/messages").body("<QueueMessage>"),
            400,
            "InvalidXmlDocument",
        ),
        (
            Request::new(Method::POST, "/orders/messages"),
            400,
            "InvalidXmlDocument",
        ),
        (
            put("/orders/messages/1?popreceipt=x"),
            400,
            "MissingRequiredQueryParameter",
        ),
        (
            put("/orders/messages/1?visibilitytimeout=1"),
            400,
            "MissingRequiredQueryParameter",
        ),
        (
            put("/orders/messages/1?popreceipt=x&visibilitytimeout=1"),
            404,
            "MessageNotFound",
        ),
        (post("/letters/messages", "x"), 404, "QueueNotFound"),
        (put("/or"), 400, "OutOfRangeInput"),
        (put("/Orders"), 400, "InvalidResourceName"),
        (
            put("/orders").header("x-ms-meta-0", "x"),
            400,
            "InvalidMetadata",
        ),
        (get("/orders"), 400, "InvalidQueryParameterValue"),
        (
            Request::new(Method::PATCH, "/orders/messages"),
            405,
            "UnsupportedHttpVerb",
        ),
        (
            post("/orders/messages", "x").header("content-md5", "bm90IGl0"),
            400,
            "Md5Mismatch",
        ),
        (
            post("/orders/messages", "x").header("x-ms-version", "yesterday"),
            400,
            "InvalidHeaderValue",
        ),
    ] {
        let answer = fixture.ask(request, status).await;
        assert_eq!(code_of(&answer), code, "{answer}");
        assert_eq!(element(&answer, "Code"), code);
    }
    fixture
        .ask(post("/orders/messages", &"x".repeat(65_536)), 201)
        .await;
}

#[tokio::test]
async fn logs_and_metrics_are_retained_for_a_year_at_most() {
    let fixture = Fixture::start().await;
    let set = |part: &str, policy: &str| {
        put("/?restype=service&comp=properties").body(format!(
            "<StorageServiceProperties><{part}><RetentionPolicy>{policy}</RetentionPolicy></{part}></StorageServiceProperties>"
        ))
    };
    for part in ["Logging", "HourMetrics", "MinuteMetrics"] {
        for days in ["0", "366", "soon"] {
            let policy = format!("<Enabled>true</Enabled><Days>{days}</Days>");
            let refused = fixture.ask(set(part, &policy), 400).await;
            assert_eq!(code_of(&refused), "InvalidXmlDocument", "{part} {days}");
        }
        let endless = fixture.ask(set(part, "<Enabled>true</Enabled>"), 400).await;
        assert_eq!(code_of(&endless), "InvalidXmlDocument", "{part}");
        for policy in [
            "<Enabled>true</Enabled><Days>1</Days>",
            "<Enabled>true</Enabled><Days>365</Days>",
            "<Enabled>false</Enabled>",
        ] {
            fixture.ask(set(part, policy), 202).await;
        }
    }
}

#[tokio::test]
async fn properties_and_policies_are_kept() {
    let fixture = Fixture::with_queue("orders").await;
    let cors = "<StorageServiceProperties><Cors><CorsRule><AllowedOrigins>http://page.example</AllowedOrigins><AllowedMethods>GET</AllowedMethods><AllowedHeaders>*</AllowedHeaders><ExposedHeaders>*</ExposedHeaders><MaxAgeInSeconds>5</MaxAgeInSeconds></CorsRule></Cors></StorageServiceProperties>";
    fixture
        .ask(put("/?restype=service&comp=properties").body(cors), 202)
        .await;
    let properties = fixture
        .ask(get("/?restype=service&comp=properties"), 200)
        .await;
    assert_eq!(
        element(&properties, "AllowedOrigins"),
        "http://page.example"
    );
    let policy = "<SignedIdentifiers><SignedIdentifier><Id>readers</Id><AccessPolicy><Expiry>2030-01-01</Expiry><Permission>r</Permission></AccessPolicy></SignedIdentifier></SignedIdentifiers>";
    fixture.ask(put("/orders?comp=acl").body(policy), 204).await;
    let policies = fixture.ask(get("/orders?comp=acl"), 200).await;
    assert_eq!(element(&policies, "Id"), "readers");
    // One that is created again has them still.
    fixture.ask(put("/orders"), 204).await;
    let policies = fixture.ask(get("/orders?comp=acl"), 200).await;
    assert_eq!(element(&policies, "Id"), "readers");
    let unknown = cors.replace("GET", "FLY");
    let refused = put("/?restype=service&comp=properties").body(unknown);
    fixture.ask(refused, 400).await;
}

#[tokio::test]
async fn a_new_queue_has_no_policies_of_one_before() {
    let fixture = Fixture::with_queue("orders").await;
    let policy = "<SignedIdentifiers><SignedIdentifier><Id>readers</Id></SignedIdentifier></SignedIdentifiers>";
    let orders = "orders".parse().expect("a name");
    for is_deleted_here in [true, false] {
        fixture.ask(put("/orders?comp=acl").body(policy), 204).await;
        if is_deleted_here {
            let delete = Request::new(Method::DELETE, "/orders");
            fixture.ask(delete, 204).await;
        } else {
            let deleted = fixture.queues.delete_queue(&orders).await;
            deleted.expect("as by a program that shares the file");
        }
        fixture.ask(put("/orders"), 201).await;
        let policies = fixture.ask(get("/orders?comp=acl"), 200).await;
        let none = b"<SignedIdentifiers></SignedIdentifiers>";
        assert!(policies.body.ends_with(none), "{policies}");
    }
}

#[tokio::test]
async fn the_second_region_is_only_read_from() {
    let fixture = Fixture::with_queue("orders").await;
    let of_second = |verb, target: &str| Request {
        target: format!("/shop-secondary{target}"),
        ..Request::new(verb, "")
    };
    let stats = fixture
        .ask(of_second(Method::GET, "/?restype=service&comp=stats"), 200)
        .await;
    assert_eq!(element(&stats, "Status"), "live");
    fixture
        .ask(of_second(Method::GET, "/orders?comp=metadata"), 200)
        .await;
    let refused = fixture.ask(of_second(Method::PUT, "/letters"), 405).await;
    assert_eq!(code_of(&refused), "UnsupportedHttpVerb");
}

#[tokio::test]
async fn an_answer_names_the_request_and_the_version() {
    let fixture = Fixture::start().await;
    let request = get("/?comp=list")
        .header("x-ms-client-request-id", "mine-7")
        .header("x-ms-version", "2011-08-18");
    let answer = fixture.ask(request, 200).await;
    assert_eq!(answer.header("x-ms-client-request-id"), Some("mine-7"));
    assert_eq!(answer.header("x-ms-version"), Some("2011-08-18"));
    assert!(
        answer
            .header("x-ms-request-id")
            .is_some_and(|id| id.len() == 36)
    );
    let date = answer
        .header("date")
        .and_then(queue_azure_wire::xml::http_date);
    let now = fixture.clock.now();
    assert!(date.is_some_and(|date| now.duration_since(date).as_secs() == 0));
    fixture.server.stop().await.expect("it stops");
}
