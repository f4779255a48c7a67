//! Messages that are put back: in their place if nobody has handled them, never for less than was asked for, and ever more
//! slowly.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use queue_runtime::backend::{BackendExt as _, MemoryBackend, NewMessage};
use queue_runtime::error::Operation;
use queue_runtime::policy::ExponentialIdle;
use queue_runtime::send::SubmitErrorKind;
use queue_runtime::testing::{self, TokioClock};
use queue_runtime::{
    Delivery, Disposition, ErrorKind, QueueService, Received, RetryPolicy, service::ExportedMessage,
};
use queue_tests::orders::{Order, order};
use queue_tests::{DAY, SECOND};
use tokio::sync::Notify;
use tokio::time::advance;

use crate::support::accounts::{Accounts, Deposit};
use crate::support::log::Log;
use crate::support::{accepted, count, memory, poison, stop};

const ACCOUNTS: u32 = 4;

/// Has a listener stopped while messages of a few accounts are handled and others wait for them, with more behind, and
/// another one handle all that is left.
async fn stopped_and_started_again(service: &QueueService) -> Accounts {
    let deposits = (0..ACCOUNTS * 30).map(|at| Deposit {
        account: at % ACCOUNTS,
        number: at / ACCOUNTS,
    });
    service.submit_all(deposits).await.expect("stored");
    let accounts = Accounts::default();
    let begun = Arc::new((AtomicU32::new(0), Notify::new()));
    let seen = (accounts.clone(), Arc::clone(&begun));
    let handler = move |deposit: Received<Deposit>| {
        let (accounts, begun) = seen.clone();
        async move {
            accounts.begin(deposit.account, deposit.number);
            accounts.end(deposit.account);
            if begun.0.fetch_add(1, Ordering::SeqCst) >= 20 {
                begun.1.notify_one();
                pending::<()>().await;
            }
        }
    };
    let listener = service.listener(handler);
    let listener = listener.one_at_a_time_by(|deposit| deposit.account);
    let listener = listener.tasks(1).start().expect("starts");
    begun.1.notified().await;
    assert!(listener.info().in_flight > 1, "others wait");
    listener.shutdown(Duration::ZERO).await;

    let handler = async |accounts: Accounts, deposit: Received<Deposit>| {
        accounts.begin(deposit.account, deposit.number);
        tokio::task::yield_now().await;
        accounts.end(deposit.account);
    };
    let next = service.listener_with(accounts.clone(), handler).tasks(1);
    let next = next.one_at_a_time_by(|deposit| deposit.account);
    let drained = next.until_empty().start().expect("starts").drained().await;
    assert_eq!(drained.info.released, 0, "there was a place for all");
    accounts
}

fn assert_in_order(accounts: &Accounts) {
    for account in 0..ACCOUNTS {
        let mut begun = accounts.of(account).begun;
        // The one whose handler was stopped is handled again.
        begun.dedup();
        assert_eq!(begun, Vec::from_iter(0..30), "{account}");
    }
}

#[tokio::test]
async fn a_stop_keeps_the_order_of_a_key() {
    assert_in_order(&stopped_and_started_again(&memory().await).await);
}

#[tokio::test]
async fn a_stop_keeps_the_order_of_a_key_on_sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite:{}", folder.path().join("queues.db").display());
    let service = QueueService::connect(&url).await.expect("opens");
    assert_in_order(&stopped_and_started_again(&service).await);
}

/// For longer than a handler may take, as behind several that take long.
#[tokio::test(start_paused = true)]
async fn a_message_waits_for_its_turn_for_as_long_as_that_takes() {
    let (service, accounts) = (testing::service().await, Accounts::default());
    let deposits = (0..10).map(|number| Deposit { account: 0, number });
    service.submit_all(deposits).await.expect("stored");
    let handler = async |accounts: Accounts, deposit: Received<Deposit>| {
        accounts.begin(0, deposit.number);
        tokio::time::sleep(15 * SECOND).await;
        accounts.end(0);
    };
    let listener = service
        .listener_with(accounts.clone(), handler)
        .handler_timeout(20 * SECOND)
        .one_at_a_time_by(|deposit| deposit.account)
        .start()
        .expect("starts");
    testing::drain([&listener]).await.expect("drained");
    assert_eq!(listener.info().released, 0);
    assert_eq!(accounts.of(0).begun, Vec::from_iter(0..10));
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_delivery_that_is_released_or_never_returned_is_the_next_one_again() {
    let service = testing::service().await;
    for number in 0..40 {
        service.submit(order(number)).await.expect("stored");
    }
    let first = accepted::<Order>(&service).await;
    first.release().await.expect("released");
    // What the stream holds is handed back in the background.
    let mut stream = Box::pin(service.messages::<Order>(8));
    let first = futures_util::StreamExt::next(&mut stream).await;
    let first = first.expect("one").expect("accepted");
    assert_eq!(first.number, 0);
    drop(stream);
    first.release().await.expect("released");
    advance(SECOND).await;
    for number in 0..40 {
        let next = accepted::<Order>(&service).await;
        assert_eq!((next.number, next.attempt()), (number, 1));
        next.complete().await.expect("completed");
    }
}

/// Puts an order back by this, and returns after how many days it is accepted again.
async fn days_until_again(
    service: &QueueService,
    put_back: impl AsyncFnOnce(Delivery<Order>),
) -> u32 {
    service.submit(order(1)).await.expect("stored");
    put_back(accepted::<Order>(service).await).await;
    for day in 1..=100 {
        advance(DAY).await;
        if let Some(again) = service.accept::<Order>().await.expect("no error") {
            again.complete().await.expect("completed");
            return day;
        }
    }
    panic!("it was not accepted again");
}

#[tokio::test(start_paused = true)]
async fn a_delay_beyond_the_limit_is_kept() {
    let service = testing::service().await;
    let postponed = days_until_again(&service, async |order| {
        let settled = order.settle(Disposition::postpone(30 * DAY)).await;
        settled.expect("put back");
    });
    assert_eq!(postponed.await, 30);
    let retried = days_until_again(&service, async |order| {
        order
            .retry_after(15 * DAY, "later")
            .await
            .expect("put back");
    });
    assert_eq!(retried.await, 15);
    let within = days_until_again(&service, async |order| {
        order.retry_after(7 * DAY, "later").await.expect("put back");
    });
    assert_eq!(within.await, 7);
}

/// It is not handled early by a listener either, and the receives in between are no attempts.
#[tokio::test(start_paused = true)]
async fn a_listener_puts_what_is_not_due_back_again() {
    let service = testing::service().await;
    service.submit(order(1)).await.expect("stored");
    let order = accepted::<Order>(&service).await;
    let settled = order.settle(Disposition::postpone(10 * DAY)).await;
    settled.expect("put back");
    let attempts = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = Arc::clone(&attempts);
    let started = tokio::time::Instant::now();
    let listener = service
        .listener(move |order: Received<Order>| {
            let attempt = (order.attempt(), started.elapsed().as_secs() / 3600);
            seen.lock().expect("free").push(attempt);
            async {}
        })
        .poison_threshold(1)
        .idle(ExponentialIdle::up_to(DAY / 24))
        .start()
        .expect("starts");
    tokio::time::sleep(9 * DAY).await;
    assert_eq!(*attempts.lock().expect("free"), []);
    tokio::time::sleep(2 * DAY).await;
    assert_eq!(*attempts.lock().expect("free"), [(1, 240)]);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_body_without_room_for_a_longer_delay_is_poison_and_not_early() {
    let service = testing::service().await;
    let raw = service.any_queue("raw").expect("a name");
    raw.create().await.expect("created");
    let put = service.backend().put(raw.name(), NewMessage::new("bare"));
    put.await.expect("put");
    let bare = raw.accept().await.expect("no error").expect("one");
    let settled = bare.settle(Disposition::postpone(8 * DAY)).await;
    settled.expect("moved");
    let (record, _) = poison(&service, "raw-poison").await.remove(0);
    let error = record.error.unwrap_or_default();
    assert!(
        error.contains("691200s") && error.contains("604800s"),
        "{error}"
    );
}

#[tokio::test]
async fn a_policy_beyond_the_limit_is_refused_unless_the_url_raises_it() {
    let day = |days| RetryPolicy::fixed(days * DAY);
    let folder = tempfile::tempdir().expect("a folder");
    let sqlite = format!("sqlite:{}", folder.path().join("queues.db").display());
    for (storage, option, days, allowed) in [
        ("memory:", "", 7, true),
        ("memory:", "", 8, false),
        ("memory:", "?max_delay=30d", 30, true),
        ("memory:", "?max_delay=30d", 31, false),
        (&sqlite, "", 8, false),
        (&sqlite, "?adopt&max_delay=720h", 30, true),
        (&sqlite, "?max_delay=30d", 31, false),
    ] {
        let url = &format!("{storage}{option}");
        let service = QueueService::connect(url).await.expect("opens");
        let created = service.queue::<Order>().any().create().await;
        created.expect("created");
        let listener = service.listener(async |_: Received<Order>| ());
        let started = listener.retry(day(days)).start();
        let error = started.err().map(|error| error.to_string());
        assert_eq!(error.is_none(), allowed, "{url} {days}: {error:?}");
        let text = error.unwrap_or_default();
        let names_it = text.contains("longest delay of the retry policy");
        assert_eq!(names_it, !allowed, "{text}");
        let accepted = service.accept::<Order>().retry(day(days)).await;
        assert_eq!(accepted.is_ok(), allowed, "{url} {days}");
        let submitted = service.submit(order(1)).delay(days * DAY).await;
        let refused = submitted.err().map(|error| match error.kind {
            SubmitErrorKind::Storage(error) => error.kind(),
            other => panic!("{other}"),
        });
        let expected = (!allowed).then_some(ErrorKind::InvalidInput);
        assert_eq!(refused, expected, "{url} {days}");
    }
    for url in [
        "memory:?max_delay=soon",
        "memory:?max_delay=0s",
        "memory:a?cache=1",
    ] {
        let refused = QueueService::connect(url).await.expect_err("refused");
        let text = format!("{refused:?}");
        assert!(text.contains("max_delay"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_exported_message_is_not_imported_for_less_than_its_delay() {
    let longer = MemoryBackend::new(Arc::new(TokioClock::new())).with_max_delay(30 * DAY);
    let longer = QueueService::with_backend(Arc::new(longer));
    let longer = longer
        .on_current_runtime()
        .connect()
        .await
        .expect("connects");
    longer
        .submit(order(1))
        .delay(20 * DAY)
        .await
        .expect("stored");
    let orders = longer.any_queue("orders").expect("a name");
    let exported: Vec<ExportedMessage> = orders.export(None, 10).await.expect("read").messages;
    let service = testing::service().await;
    let orders = service.any_queue("orders").expect("a name");
    orders.create().await.expect("created");
    let refused = orders.import(&exported).await.expect_err("refused");
    let text = format!("{refused:?}");
    assert!(
        text.contains("1728000s") && text.contains("604800s"),
        "{text}"
    );
    assert_eq!(count(&service, "orders").await, 0);
}

/// How often a minute the handler of a message runs that is always put back like this, and how many warnings say so.
async fn runs_a_minute(returned: fn() -> Disposition) -> (u32, usize) {
    let (log, _guard) = Log::start();
    let (service, faults) = testing::service_with_faults().await;
    service.submit(order(1)).await.expect("stored");
    let runs = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&runs);
    let listener = service
        .listener(move |_: Received<Order>| {
            seen.fetch_add(1, Ordering::SeqCst);
            async move { returned() }
        })
        .poison_threshold(u32::MAX as usize)
        .start()
        .expect("starts");
    tokio::time::sleep(60 * SECOND).await;
    stop(listener).await;
    let runs = runs.load(Ordering::SeqCst);
    assert!(faults.calls(Operation::Update) <= runs as usize + 1);
    (runs, log.count("is put back again and again"))
}

#[tokio::test(start_paused = true)]
async fn what_is_always_put_back_at_once_comes_once_a_second_with_one_warning() {
    for returned in [
        (|| Disposition::postpone(Duration::ZERO)) as fn() -> Disposition,
        || Disposition::retry_after(Duration::ZERO, "again"),
    ] {
        let (runs, warnings) = runs_a_minute(returned).await;
        assert!((60..120).contains(&runs), "{runs}");
        assert_eq!(warnings, 1);
    }
    let (runs, warnings) = runs_a_minute(|| Disposition::postpone(SECOND)).await;
    assert!((58..=61).contains(&runs), "{runs}");
    assert_eq!(warnings, 0, "it asks for no more than it gets");
}
