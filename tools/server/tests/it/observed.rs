//! What an operator sees: readiness, metrics, the log of requests.

use http::Method;
use metrics_exporter_prometheus::PrometheusBuilder;
use queue_core::Operation;
use queue_runtime::ErrorKind;
use queue_runtime::testing::Fault;
use queue_tests::Written;
use tracing_subscriber::filter::LevelFilter;

use crate::fixture::{Fixture, KEY, Request, element, status_of};

#[tokio::test]
async fn it_is_ready_while_the_queues_answer() {
    let fixture = Fixture::start().await;
    let ask = Request {
        target: "/-/ready".to_owned(),
        ..Request::new(Method::GET, "")
    }
    .header("host", "balancer.example");
    assert_eq!(status_of(&fixture.send(&ask).await), 200);
    let fault = Fault::Refused(ErrorKind::Unreachable);
    fixture.queues.fail_next(1, Operation::Properties, fault);
    assert_eq!(status_of(&fixture.send(&ask).await), 503);
    assert_eq!(status_of(&fixture.send(&ask).await), 200);
}

#[tokio::test]
async fn requests_are_counted_by_operation_and_answer() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let rendered = recorder.handle();
    // Of this thread, on which the server runs, too.
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let fixture = Fixture::with_queue("orders").await;
    let put = Request::new(Method::POST, "/orders/messages").message("text");
    fixture.ask(put.clone(), 201).await;
    fixture.ask(put, 201).await;
    let missing = Request::new(Method::GET, "/letters/messages");
    fixture.ask(missing, 404).await;
    let metrics = rendered.render();
    for (operation, status, code, count) in [
        ("CreateQueue", 201, "", 1),
        ("PutMessage", 201, "", 2),
        ("GetMessages", 404, "QueueNotFound", 1),
    ] {
        let line = format!(
            "http_server_request_duration_seconds_count{{operation=\"{operation}\",http_response_status_code=\"{status}\",error_type=\"{code}\"}} {count}"
        );
        assert!(metrics.contains(&line), "{line}\n{metrics}");
    }
    assert!(
        metrics.contains("http_server_active_requests 0"),
        "{metrics}"
    );
}

#[tokio::test]
async fn the_log_of_requests_has_no_secrets() {
    let written = Written::default();
    let writer = written.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _subscriber = tracing::subscriber::set_default(subscriber);
    let fixture = Fixture::with_queue("orders").await;
    let put = Request::new(Method::POST, "/orders/messages")
        .header("x-ms-client-request-id", "mine-7")
        .message("a secret text");
    let put = fixture.signed(put);
    let answer = fixture.send(&put).await;
    let (id, receipt) = (
        element(&answer, "MessageId"),
        element(&answer, "PopReceipt"),
    );
    let target = format!(
        "/orders/messages/{id}?popreceipt={}",
        receipt.replace('+', "%2B")
    );
    fixture
        .ask(Request::new(Method::DELETE, &target), 204)
        .await;
    let guess = "/orders/messages?sv=2026-04-06&sp=r&se=2099-01-01&sig=c2VjcmV0";
    fixture.send(&Request::new(Method::GET, guess)).await;
    let log = written.text();
    for expected in [
        "queue_server::access",
        "operation=\"PutMessage\" status=201",
        "client_id=\"mine-7\"",
        "account=\"shop\" queue=\"orders\"",
        "operation=\"DeleteMessage\" status=204",
        "status=403 code=\"AuthenticationFailed\"",
    ] {
        assert!(log.contains(expected), "{expected}\n{log}");
    }
    let authorization = put.headers.iter().find(|(name, _)| name == "authorization");
    let (_, signature) = authorization
        .and_then(|(_, value)| value.rsplit_once(':'))
        .expect("signed");
    for secret in [KEY, "a secret text", "popreceipt", "c2VjcmV0", signature] {
        assert!(!log.contains(secret), "{secret}\n{log}");
    }
}
