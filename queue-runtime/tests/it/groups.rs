//! Messages of a group are handled in the order of their submissions, one at a time, whoever handles them.

use std::sync::Arc;

use queue_runtime::backend::{Backend, GroupLimit, MemoryBackend, MessageState};
use queue_runtime::internal::error_chain;
use queue_runtime::testing::{self, TokioClock};
use queue_runtime::{Batch, Disposition, Message, QueueService, Received, RetryPolicy, batch};
use queue_tests::{HOUR, SECOND};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::support::accounts::Accounts;
use crate::support::{Hourly, guarded, stop};

/// A change of an account: the group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Message)]
#[message(queue = "ledger", poison_threshold = 3)]
enum Change {
    Deposit {
        #[message(group)]
        account: u32,
        number: u32,
    },
    Withdrawal {
        #[message(group)]
        account: u32,
        number: u32,
    },
    /// A change of no account.
    Report,
}

/// A message that may travel in packs.
#[derive(Debug, Clone, Serialize, Deserialize, Message)]
#[message(queue = "parcels", packed)]
struct Parcel {
    #[message(group)]
    to: String,
    number: u32,
}

impl Change {
    fn of(account: u32, number: u32) -> Self {
        if number.is_multiple_of(2) {
            Self::Deposit { account, number }
        } else {
            Self::Withdrawal { account, number }
        }
    }

    fn place(&self) -> (u32, u32) {
        match *self {
            Self::Deposit { account, number } | Self::Withdrawal { account, number } => {
                (account, number)
            }
            Self::Report => (u32::MAX, 0),
        }
    }
}

const ACCOUNTS: u32 = 5;

/// Submits the changes of all accounts in turn.
async fn submit_changes(service: &QueueService, each: u32) {
    let all = (0..each).flat_map(|number| (0..ACCOUNTS).map(move |account| (account, number)));
    let changes = all.map(|(account, number)| Change::of(account, number));
    service.submit_all(changes).await.expect("stored");
}

async fn changed(accounts: Accounts, change: Received<Change>) {
    let (account, number) = change.place();
    assert!(change.fence().is_some());
    accounts.begin(account, number);
    sleep(SECOND * ((account + number) % 3)).await;
    accounts.end(account);
}

/// Two services handle a backlog of each account that is larger than their room.
async fn two_services_keep_the_order(services: [QueueService; 2]) {
    const EACH: u32 = 60;
    let accounts = Accounts::default();
    submit_changes(&services[0], EACH).await;
    let listen = |service: &QueueService| {
        let listener = service.listener_with(accounts.clone(), changed);
        listener.max_in_flight(8).start().expect("starts")
    };
    let listeners = [listen(&services[0]), listen(&services[1])];
    let drained = testing::drain(listeners.iter()).await.expect("drained");
    assert_eq!(drained.completed(), (EACH * ACCOUNTS) as usize);
    for account in 0..ACCOUNTS {
        let account = accounts.of(account);
        assert_eq!((account.most, account.begun), (1, Vec::from_iter(0..EACH)));
    }
    for listener in listeners {
        assert!(listener.info().completed > 0);
        stop(listener).await;
    }
}

#[tokio::test(start_paused = true)]
async fn two_services_in_memory_keep_the_order_of_each_group() {
    let memory: Arc<dyn Backend> = Arc::new(MemoryBackend::new(Arc::new(TokioClock::new())));
    let service = async || {
        let builder = QueueService::with_backend(Arc::clone(&memory));
        let builder = builder.clock(Arc::new(TokioClock::new()));
        builder.connect().await.expect("connected")
    };
    two_services_keep_the_order([service().await, service().await]).await;
}

/// A failed attempt is repeated before the next message is handled, and a message that is given up frees its group. After a
/// redrive, it is the last.
#[tokio::test(start_paused = true)]
async fn a_retry_keeps_its_place_and_poison_frees_the_group() {
    let (service, accounts) = (testing::service().await, Accounts::default());
    submit_changes(&service, 4).await;
    let handler = async |accounts: Accounts, change: Received<Change>| {
        let (account, number) = change.place();
        accounts.begin(account, number);
        accounts.end(account);
        match (account, number) {
            (0, 1) => Disposition::retry("not yet"),
            (1, 2) if change.attempt() < 3 => Disposition::retry_after(30 * SECOND, "later"),
            _ => Disposition::complete(),
        }
    };
    let listener = service
        .listener_with(accounts.clone(), handler)
        .retry(RetryPolicy::fixed(SECOND))
        .start()
        .expect("starts");
    testing::drain([&listener]).await.expect("drained");
    stop(listener).await;
    assert_eq!(accounts.of(0).begun, [0, 1, 1, 1, 2, 3]);
    assert_eq!(accounts.of(1).begun, [0, 1, 2, 2, 2, 3]);
    assert_eq!(accounts.of(2).begun, [0, 1, 2, 3]);

    service.submit(Change::of(0, 7)).await.expect("stored");
    let poison = service.any_queue("ledger-poison").expect("a name");
    let redriven = poison.redrive().run().await.expect("redriven");
    assert_eq!(redriven.redriven, 1);
    let first = service
        .accept::<Change>()
        .await
        .expect("accepted")
        .expect("one");
    assert_eq!(first.place(), (0, 7));
    assert!(
        service
            .accept::<Change>()
            .await
            .expect("accepted")
            .is_none()
    );
    first.complete().await.expect("completed");
    let last = service
        .accept::<Change>()
        .await
        .expect("accepted")
        .expect("one");
    assert_eq!(last.place(), (0, 1));
}

/// Consumers that poll once an hour are woken when a message that they wait for is completed elsewhere.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_message_announces_the_next_one() {
    let service = testing::service().await;
    service
        .submit_all([Change::of(0, 0), Change::of(0, 1), Change::of(0, 2)])
        .await
        .expect("stored");
    let first = service
        .accept::<Change>()
        .await
        .expect("accepted")
        .expect("one");
    let (sender, mut handled) = mpsc::unbounded_channel();
    let handler = async |sender: mpsc::UnboundedSender<_>, change: Received<Change>| {
        sender.send(change.place().1).expect("it is received");
    };
    let listener = service
        .listener_with(sender, handler)
        .idle(Hourly)
        .start()
        .expect("starts");
    sleep(10 * SECOND).await;
    let ended = tokio::time::Instant::now();
    first.complete().await.expect("completed");
    for number in [1, 2] {
        assert_eq!(
            guarded(handled.recv()).await.expect("it comes"),
            Some(number)
        );
    }
    assert!(ended.elapsed() < HOUR, "{:?}", ended.elapsed());
    stop(listener).await;
}

/// Two services handle up to three messages of a group at once, together, and all that are put back or fail in between.
#[tokio::test(start_paused = true)]
async fn a_limit_holds_for_all_listeners_and_lets_groups_take_turns() {
    const EACH: u32 = 40;
    let memory: Arc<dyn Backend> = Arc::new(MemoryBackend::new(Arc::new(TokioClock::new())));
    let service = async || {
        let builder = QueueService::with_backend(Arc::clone(&memory));
        let builder = builder.clock(Arc::new(TokioClock::new()));
        builder.connect().await.expect("connected")
    };
    let services = [service().await, service().await];
    let ledger = services[0].any_queue("ledger").expect("a name");
    ledger.create().await.expect("created");
    let limit: GroupLimit = "3".parse().expect("a limit");
    let before = ledger.set_group_limit(limit).await.expect("set");
    assert_eq!(
        (before, ledger.group_limit().await.expect("read")),
        (GroupLimit::InOrder, limit)
    );
    for account in 0..ACCOUNTS {
        let changes = (0..EACH).map(|number| Change::of(account, number));
        services[0].submit_all(changes).await.expect("stored");
    }
    let accounts = Accounts::default();
    let handler = async |accounts: Accounts, change: Received<Change>| {
        let (account, number) = change.place();
        accounts.begin(account, number);
        sleep(SECOND * (number % 4)).await;
        accounts.end(account);
        match number {
            7 if change.attempt() == 1 => Disposition::retry_after(600 * SECOND, "later"),
            8 if change.attempt() == 1 => Disposition::retry("again"),
            _ => Disposition::complete(),
        }
    };
    let listen = |service: &QueueService| {
        let listener = service.listener_with(accounts.clone(), handler);
        listener
            .idle(Hourly)
            .max_in_flight(12)
            .start()
            .expect("starts")
    };
    let listeners = [listen(&services[0]), listen(&services[1])];
    let drained = testing::drain(listeners.iter()).await.expect("drained");
    assert_eq!(drained.completed(), (EACH * ACCOUNTS) as usize);
    for account in 0..ACCOUNTS {
        let account = accounts.of(account);
        assert_eq!((account.most, account.begun.len()), (3, EACH as usize + 2));
        // All others pass what waits for ten minutes.
        assert_eq!(account.begun.last(), Some(&7));
    }
    for listener in listeners {
        stop(listener).await;
    }
}

/// A consumer that polls once an hour gets the next message of a group when one is put back.
#[tokio::test(start_paused = true)]
async fn a_message_that_is_put_back_announces_the_next_one() {
    let service = testing::service().await;
    let ledger = service.any_queue("ledger").expect("a name");
    ledger.create().await.expect("created");
    let limit = "1".parse().expect("a limit");
    ledger.set_group_limit(limit).await.expect("set");
    let changes = [Change::of(0, 0), Change::of(0, 1)];
    service.submit_all(changes).await.expect("stored");
    let first = service.accept::<Change>().await.expect("accepted");
    let first = first.expect("one");
    let (sender, mut handled) = mpsc::unbounded_channel();
    let handler = async |sender: mpsc::UnboundedSender<_>, change: Received<Change>| {
        sender.send(change.place().1).expect("it is received");
    };
    let listener = service.listener_with(sender, handler).idle(Hourly);
    let listener = listener.start().expect("starts");
    sleep(10 * SECOND).await;
    let put_back = tokio::time::Instant::now();
    let later = first.retry_after(2 * HOUR, "later").await;
    later.expect("put back");
    let next = guarded(handled.recv()).await.expect("it comes");
    assert_eq!(next, Some(1));
    assert!(put_back.elapsed() < HOUR, "{:?}", put_back.elapsed());
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_group_is_that_of_its_field_or_that_of_its_submission() {
    let service = testing::service().await;
    let submit = async |change: Change, group: Option<&str>| {
        let submission = service.submit(change);
        match group {
            Some(group) => submission.group(group).await.expect("stored"),
            None => submission.await.expect("stored"),
        };
    };
    submit(Change::of(1, 0), None).await;
    submit(Change::of(1, 1), None).await;
    submit(Change::of(1, 2), Some("2")).await;
    submit(Change::of(2, 3), None).await;
    submit(Change::Report, None).await;
    submit(Change::Report, None).await;
    let accepted = service.accept_many::<Change>(10).await.expect("accepted");
    let seen: Vec<_> = accepted
        .iter()
        .map(|one| {
            (
                one.place(),
                one.envelope().group.as_deref(),
                one.fence().is_some(),
            )
        })
        .collect();
    let report = ((u32::MAX, 0), None, false);
    assert_eq!(
        seen,
        [
            ((1, 0), Some("1"), true),
            ((1, 2), Some("2"), true),
            report,
            report
        ]
    );
    let queue = service.any_queue("ledger").expect("a name");
    let page = queue.browse(None, 10).await.expect("browsed");
    let behind = page
        .messages
        .iter()
        .filter(|one| one.state == MessageState::Behind);
    assert_eq!(behind.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn messages_with_a_group_are_in_no_pack_and_in_order_in_a_batch() {
    let service = testing::service().await;
    let parcel = |number| Parcel {
        to: format!("house {}", number % 2),
        number,
    };
    service
        .submit_all((0..10).map(parcel))
        .await
        .expect("stored");
    let queue = service.any_queue("parcels").expect("a name");
    assert_eq!(
        queue.properties().await.expect("read").approximate_count,
        10
    );
    let (sender, mut handled) = mpsc::unbounded_channel();
    let handler = batch(
        async |sender: mpsc::UnboundedSender<u32>, parcels: Batch<Parcel>| {
            for parcel in &parcels {
                sender.send(parcel.number).expect("it is received");
            }
        },
    );
    let listener = service
        .listener_with(sender, handler)
        .start()
        .expect("starts");
    testing::drain([&listener]).await.expect("drained");
    stop(listener).await;
    let mut numbers = Vec::new();
    while let Some(number) = handled.recv().await {
        numbers.push(number);
    }
    let of = |rest| {
        numbers
            .iter()
            .copied()
            .filter(move |number| number % 2 == rest)
    };
    assert!(
        of(0).eq([0, 2, 4, 6, 8]) && of(1).eq([1, 3, 5, 7, 9]),
        "{numbers:?}"
    );
}

#[tokio::test]
async fn a_storage_without_groups_refuses_them_and_says_what_to_do_instead() {
    let url = "sharded:2|memory:no-groups-a|memory:no-groups-b";
    let service = QueueService::connect(url).await.expect("connected");
    let error = service.submit(Change::of(1, 1)).await.expect_err("refused");
    let text = error_chain(&error);
    assert!(text.contains("one_at_a_time_by"), "{text}");
    service
        .submit(Change::Report)
        .await
        .expect("it has no group");
    let refused = service.listener_with(Accounts::default(), changed).start();
    let text = refused.expect_err("refused").to_string();
    assert!(
        text.contains("`change` have groups") && text.contains("one_at_a_time_by"),
        "{text}"
    );
}

/// Messages behind others outlive their process, and are exported and imported in their order.
#[tokio::test]
async fn groups_are_in_the_file_and_in_exports() {
    let folder = tempfile::tempdir().expect("a folder");
    let connect = async |name: &str| {
        let path = folder.path().join(name);
        let url = format!("sqlite:{}", path.display());
        QueueService::connect(&url).await.expect("opens")
    };
    let service = connect("first.db").await;
    submit_changes(&service, 3).await;
    service.shutdown(SECOND).await;

    let service = connect("first.db").await;
    let first = service
        .accept::<Change>()
        .await
        .expect("accepted")
        .expect("one");
    first.complete().await.expect("completed");
    let queue = service.any_queue("ledger").expect("a name");
    let exported = queue.export(None, 100).await.expect("exported");
    assert_eq!(exported.messages.len(), 14);

    let other = connect("second.db").await;
    let imported = other.any_queue("ledger").expect("a name");
    imported.create().await.expect("created");
    let imported = imported.import(&exported.messages).await;
    imported.expect("imported");
    let (accounts, handler) = (Accounts::default(), changed);
    let listener = other
        .listener_with(accounts.clone(), handler)
        .start()
        .expect("starts");
    testing::drain([&listener]).await.expect("drained");
    stop(listener).await;
    assert_eq!(accounts.of(0).begun, [1, 2]);
    for account in 1..ACCOUNTS {
        assert_eq!(accounts.of(account).begun, [0, 1, 2]);
    }
}
