use super::*;

const NOW: Timestamp = Timestamp::constant(1_767_225_600, 0);

fn read(status: u16, headers: &[(&'static str, &'static str)], body: &str) -> ServiceError {
    let mut given = Headers::new();
    for (name, value) in headers {
        given.insert(*name, *value);
    }
    ServiceError::read(status, Some(&given), body.as_bytes())
}

fn coded(status: u16, code: &'static str, operation: Operation) -> Error {
    read(status, &[("x-ms-error-code", code)], "").to_error(operation, NOW)
}

#[test]
fn error_codes_of_the_service() {
    use ErrorKind as Kind;
    use Operation::{CreateQueue, Delete, Put, Receive, Update};
    use Outcome::{NotDone, Unknown};
    let cases = [
        (404, "QueueNotFound", Receive, Kind::QueueNotFound, NotDone),
        (
            404,
            "MessageNotFound",
            Delete,
            Kind::MessageNotFound,
            NotDone,
        ),
        (
            400,
            "PopReceiptMismatch",
            Update,
            Kind::ReceiptMismatch,
            NotDone,
        ),
        (
            409,
            "QueueAlreadyExists",
            CreateQueue,
            Kind::QueueExists,
            NotDone,
        ),
        (
            409,
            "QueueBeingDeleted",
            CreateQueue,
            Kind::QueueBeingDeleted,
            NotDone,
        ),
        (409, "QueueDisabled", Put, Kind::Denied, NotDone),
        (413, "RequestBodyTooLarge", Put, Kind::TooLarge, NotDone),
        (400, "MessageTooLarge", Put, Kind::TooLarge, NotDone),
        (403, "AuthenticationFailed", Put, Kind::Denied, NotDone),
        (
            403,
            "AuthorizationPermissionMismatch",
            Put,
            Kind::Denied,
            NotDone,
        ),
        (401, "InvalidAuthenticationInfo", Put, Kind::Denied, NotDone),
        (503, "ServerBusy", Put, Kind::Throttled, NotDone),
        (500, "OperationTimedOut", Put, Kind::Throttled, Unknown),
        (500, "InternalError", Put, Kind::Storage, Unknown),
        (
            400,
            "OutOfRangeQueryParameterValue",
            Put,
            Kind::InvalidInput,
            NotDone,
        ),
        (400, "InvalidXmlDocument", Put, Kind::InvalidInput, NotDone),
        (405, "UnsupportedHttpVerb", Put, Kind::Unsupported, NotDone),
    ];
    for (status, code, operation, kind, outcome) in cases {
        let error = coded(status, code, operation);
        assert_eq!((error.kind(), error.outcome()), (kind, outcome), "{code}");
        assert!(error.to_string().contains(code), "{error}");
        assert_eq!(error.code(), Some(code));
    }
    let retry = |status, code| coded(status, code, Put).retry();
    assert_eq!(retry(503, "ServerBusy"), RetryAdvice::Throttled(None));
    assert_eq!(
        retry(500, "OperationTimedOut"),
        RetryAdvice::Throttled(None)
    );
    assert_eq!(retry(500, "InternalError"), RetryAdvice::Temporary);
    assert_eq!(retry(403, "AuthenticationFailed"), RetryAdvice::Permanent);
}

#[test]
fn replies_of_proxies() {
    use Outcome::Unknown;
    let cases = [
        (200, ErrorKind::Unreachable, Unknown),
        (401, ErrorKind::Unreachable, Unknown),
        (403, ErrorKind::Unreachable, Unknown),
        (404, ErrorKind::Unreachable, Unknown),
        (407, ErrorKind::Unreachable, Unknown),
        (409, ErrorKind::Unreachable, Unknown),
        (413, ErrorKind::Unreachable, Unknown),
        (429, ErrorKind::Throttled, Unknown),
        (302, ErrorKind::Unreachable, Unknown),
        (408, ErrorKind::Timeout, Unknown),
        (500, ErrorKind::Storage, Unknown),
        (502, ErrorKind::Unreachable, Unknown),
        (503, ErrorKind::Throttled, Unknown),
        (504, ErrorKind::Unreachable, Unknown),
    ];
    for (status, kind, outcome) in cases {
        let error = read(status, &[], "<html>Oops</html>").to_error(Operation::Put, NOW);
        assert_eq!((error.kind(), error.outcome()), (kind, outcome), "{status}");
        assert_ne!(error.retry(), RetryAdvice::Permanent, "{status}");
        let later = read(status, &[("retry-after", "3")], "").to_error(Operation::Put, NOW);
        let three = Some(Duration::from_secs(3));
        assert_eq!(later.retry(), RetryAdvice::Throttled(three), "{status}");
        assert!(
            error.to_string().contains("not certainly from the service"),
            "{error}"
        );
    }
}

#[test]
fn a_foreign_reply_delays_for_no_longer_than_an_outage_does() {
    let asked = |status, after: &'static str| {
        let mut headers = Headers::new();
        headers.insert("date", "Thu, 01 Jan 2026 00:00:00 GMT");
        headers.insert("retry-after", after);
        let error = ServiceError::foreign(status, &headers).to_error(Operation::Receive, NOW);
        assert_eq!(error.code(), None);
        match error.retry() {
            RetryAdvice::Throttled(Some(after)) => after.as_secs(),
            other => panic!("{other:?}"),
        }
    };
    for status in [429, 502, 503] {
        for (after, seconds) in [
            ("3", 3),
            ("30", 30),
            ("3600", 30),
            ("Thu, 01 Jan 2026 00:00:09 GMT", 9),
            ("Thu, 01 Jan 2026 01:00:00 GMT", 30),
        ] {
            assert_eq!(asked(status, after), seconds, "{status} {after}");
        }
    }
}

#[test]
fn a_receipt_that_the_service_cannot_parse_is_stale() {
    let body = "\u{feff}<?xml version=\"1.0\"?><Error><Code>InvalidQueryParameterValue</Code>\
                <Message>s3cret</Message><QueryParameterName>popreceipt</QueryParameterName>\
                <QueryParameterValue>s3cret</QueryParameterValue></Error>";
    let error = |operation| read(400, &[], body).to_error(operation, NOW);
    assert_eq!(error(Operation::Delete).kind(), ErrorKind::ReceiptMismatch);
    assert_eq!(error(Operation::Update).kind(), ErrorKind::ReceiptMismatch);
    assert_eq!(error(Operation::Put).kind(), ErrorKind::InvalidInput);
    let told = format!("{0} {0:?}", error(Operation::Delete));
    assert!(
        told.contains("`popreceipt`") && !told.contains("s3cret"),
        "{told}"
    );
}

#[test]
fn retry_after_is_honoured() {
    let date = ("date", "Thu, 01 Jan 2026 00:00:00 GMT");
    let busy = ("x-ms-error-code", "ServerBusy");
    let asked = |headers: &[_]| match read(503, headers, "").to_error(Operation::Put, NOW).retry() {
        RetryAdvice::Throttled(after) => after,
        other => panic!("{other:?}"),
    };
    let wait = |header| asked(&[busy, date, header]);
    assert_eq!(wait(("retry-after", "7")), Some(Duration::from_secs(7)));
    let at = ("retry-after", "Thu, 01 Jan 2026 00:00:09 GMT");
    assert_eq!(wait(at), Some(Duration::from_secs(9)));
    let past = ("retry-after", "Wed, 01 Jan 2025 00:00:00 GMT");
    assert_eq!(wait(past), Some(Duration::ZERO));
    assert_eq!(asked(&[busy, at]), None, "not measured by our own clock");
    let short = ("x-ms-retry-after-ms", "250");
    assert_eq!(wait(short), Some(Duration::from_millis(250)));
    for nonsense in ["-1", "soon", "", "99999999999999999999999"] {
        assert_eq!(wait(("retry-after", nonsense)), None);
    }
    let error = read(500, &[("retry-after", "3")], "").to_error(Operation::Put, NOW);
    assert_eq!(
        error.retry(),
        RetryAdvice::Throttled(Some(Duration::from_secs(3)))
    );
}

#[test]
fn clock_skew_is_mentioned() {
    let told = |date| {
        let headers = [("x-ms-error-code", "AuthenticationFailed"), ("date", date)];
        read(403, &headers, "")
            .to_error(Operation::Put, NOW)
            .to_string()
    };
    let behind = told("Thu, 01 Jan 2026 00:20:00 GMT");
    assert!(
        behind.contains("clock is 20 minutes behind the service's"),
        "{behind}"
    );
    let ahead = told("Wed, 31 Dec 2025 23:39:30 GMT");
    assert!(
        ahead.contains("clock is 21 minutes ahead of the service's"),
        "{ahead}"
    );
    let right = told("Thu, 01 Jan 2026 00:00:30 GMT");
    assert!(!right.contains("clock"), "{right}");
}
