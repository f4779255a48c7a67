//! A service on a SQLite file, and what was submitted to it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use queue_runtime::backend::TimeToLive;
use queue_runtime::sqlite::rusqlite::{Connection, Transaction, TransactionBehavior};
use queue_runtime::testing::{self, TestService, drain};
use queue_runtime::{
    Delivery, Disposition, Failure, FollowUp, Message, QueueService, Received, RetryPolicy,
    in_transaction,
};
use queue_tests::incompressible;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
struct Deposit {
    #[message(key)]
    number: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(time_to_live = "1h")]
struct Notice {
    text: String,
}

/// Long enough for the slowest machine; only a hang meets it.
const GUARD: Duration = Duration::from_secs(60);

fn deposit(number: u32) -> Deposit {
    Deposit { number }
}

fn notice(text: &str) -> Notice {
    let text = text.to_owned();
    Notice { text }
}

fn connect(service: &QueueService) -> Connection {
    queue_runtime::sqlite::connect(service.backend()).expect("a connection")
}

fn begin(connection: &mut Connection) -> Transaction<'_> {
    let begun = connection.transaction_with_behavior(TransactionBehavior::Immediate);
    begun.expect("nobody else writes for long")
}

async fn accept<M: Message>(service: &QueueService) -> Delivery<M> {
    let accepted = service.accept::<M>().await.expect("no error");
    accepted.expect("a message")
}

fn folder(service: &QueueService) -> PathBuf {
    let connection = connect(service);
    let file = PathBuf::from(connection.path().expect("a file"));
    file.parent().expect("a folder").to_owned()
}

/// Waits until a folder is deleted: the tasks of the service end after it is dropped.
async fn gone(folder: &Path) {
    let gone = async {
        while folder.exists() {
            tokio::task::yield_now().await;
        }
    };
    let gone = tokio::time::timeout(GUARD, gone).await;
    gone.expect("it is deleted");
}

#[tokio::test]
async fn what_a_transaction_submits_is_listed_if_it_was_committed() {
    let service = testing::service_on_sqlite().await;
    let mut connection = connect(&service);
    service.submit(deposit(1)).await.expect("submitted");
    for (number, commit) in [(2, true), (3, false), (4, true)] {
        let tx = begin(&mut connection);
        service
            .submit_within(&tx, deposit(number))
            .expect("written");
        if commit {
            tx.commit().expect("committed");
        }
    }
    let row = service.submit(deposit(5)).encode_for_outbox();
    let put = "INSERT INTO queue_outbox (message) VALUES (?1)";
    connection
        .execute(put, [row.expect("encoded")])
        .expect("put");
    let more = service.submit_all([deposit(6), deposit(7)]);
    more.await.expect("submitted");

    for number in [1, 2, 4, 5, 6, 7] {
        let accepted = accept::<Deposit>(&service).await;
        assert_eq!(accepted.number, number);
        let told = FollowUp::new(&notice(&number.to_string()));
        let tx = begin(&mut connection);
        let completing = accepted.complete_within(&tx, [told]).expect("written");
        match number {
            5 => tx.rollback().expect("rolled back"),
            _ => tx.commit().expect("committed"),
        }
        let confirmed = completing.confirm().await;
        assert_eq!(confirmed.is_ok(), number != 5);
    }
    let deposits = service.submitted::<Deposit>();
    assert_eq!(deposits, [1, 2, 4, 5, 6, 7].map(deposit));
    assert_eq!(deposits[0].queue().as_str(), "deposit");
    assert!(deposits[0].key().is_some());
    let notices = ["1", "2", "4", "6", "7"].map(notice);
    assert_eq!(service.submitted::<Notice>(), notices);
}

#[tokio::test]
async fn handlers_that_work_in_transactions_are_drained() {
    let service = testing::service_on_sqlite().await;
    let connection = connect(&service);
    let table = "CREATE TABLE deposits (number INTEGER PRIMARY KEY)";
    connection.execute(table, []).expect("created");

    let insert = in_transaction(|tx, deposit: &Received<Deposit>| -> Result<_, Failure> {
        tx.execute("INSERT INTO deposits VALUES (?1)", [deposit.number])?;
        let told = Disposition::complete().then(&notice(&deposit.number.to_string()));
        match (deposit.number, deposit.attempt()) {
            (2, 1) => Err("once more".into()),
            (3, _) => Ok(Disposition::reject("never").then(&notice("never"))),
            _ => Ok(told),
        }
    });
    let at_once = RetryPolicy::fixed(Duration::ZERO);
    let deposits = service.listener(insert).retry(at_once).start();
    let deposits = deposits.expect("started");
    let notices = service.listener(async |_: Received<Notice>| {}).start();
    let notices = notices.expect("started");
    let submit = service.submit_all((1..=3).map(deposit));
    submit.await.expect("submitted");
    let drained = drain([&deposits, &notices]).timeout(GUARD).await;
    let drained = drained.expect("drained");
    assert_eq!((drained.completed(), drained.poisoned()), (4, 1));
    assert_eq!(drained.listeners[0].retried, 1);

    let mut told: Vec<_> = service.submitted::<Notice>();
    told.sort_by_key(|notice| notice.text.clone());
    assert_eq!(told, ["1", "2"].map(notice));
    let count = connection.query_row("SELECT count(*) FROM deposits", [], |row| row.get(0));
    assert_eq!(count, Ok(2));
}

#[tokio::test]
async fn delay_and_time_to_live_are_those_of_the_submission() {
    let service = testing::service_on_sqlite().await;
    let (delay, hour) = (Duration::from_secs(5), Duration::from_secs(3600));
    let submit = service.submit(notice("later")).delay(delay);
    submit.await.expect("submitted");
    let mut connection = connect(&service);
    let tx = begin(&mut connection);
    let submit = service.submit(deposit(1)).delay(2 * delay);
    submit.within(&tx).expect("written");
    tx.commit().expect("committed");

    let notices = service.submitted::<Notice>();
    assert_eq!(notices, [notice("later")]);
    let found = (notices[0].delay(), notices[0].time_to_live());
    assert_eq!(found, (delay, TimeToLive::After(hour)));
    let deposits = service.submitted::<Deposit>();
    let found = (deposits[0].delay(), deposits[0].time_to_live());
    assert_eq!(found, (2 * delay, TimeToLive::Never));
}

/// With attachments, which the copies in the poison queue have too.
#[tokio::test]
async fn what_was_moved_is_no_submission() {
    let service = testing::service_on_sqlite().await;
    let [first, last] = [100_000, 100_001].map(incompressible);
    service.submit(notice(&first)).await.expect("submitted");
    let rejected = accept::<Notice>(&service).await;
    rejected.reject("no").await.expect("moved");
    service.submit(notice(&last)).await.expect("submitted");
    let poison = service.queue::<Notice>().poison().expect("a name");
    assert_eq!(poison.redrive().run().await.expect("redriven").redriven, 1);
    for text in [&last, &first] {
        let accepted = accept::<Notice>(&service).await;
        assert_eq!(&accepted.text, text);
        accepted.complete().await.expect("completed");
    }
    assert_eq!(
        service.submitted::<Notice>(),
        [&first, &last].map(|text| notice(text))
    );
}

#[tokio::test]
async fn the_messages_of_a_pack_are_listed_and_what_leaves_it_is_not() {
    let service = testing::service_on_sqlite().await;
    let packed = service.submit_all((1..=20).map(deposit)).packed();
    packed.await.expect("submitted");
    let handle = async |deposit: Received<Deposit>| match deposit.number {
        7 => Disposition::reject("never"),
        8 if deposit.attempt() == 1 => Disposition::retry("later"),
        number => Disposition::complete().then(&notice(&number.to_string())),
    };
    let soon = RetryPolicy::fixed(Duration::from_millis(10));
    let listener = service.listener(handle).retry(soon).start();
    let listener = listener.expect("started");
    let drained = drain([&listener]).timeout(GUARD).await.expect("drained");
    assert_eq!((drained.completed(), drained.poisoned()), (19, 1));
    let all: Vec<_> = (1..=20).map(deposit).collect();
    assert_eq!(service.submitted::<Deposit>(), all);
    assert_eq!(service.submitted::<Notice>().len(), 19);
}

/// One is stored with its message at once, and the other before it, in parts.
#[tokio::test]
async fn an_attachment_is_read_after_its_message_was_completed() {
    let service = testing::service_on_sqlite().await;
    let mut connection = connect(&service);
    let texts = [incompressible(100_000), incompressible(2_500_000)];
    for text in &texts {
        service.submit(notice(text)).await.expect("submitted");
        for commit in [false, true] {
            let tx = begin(&mut connection);
            service.submit_within(&tx, notice(text)).expect("written");
            if commit {
                tx.commit().expect("committed");
            }
        }
    }
    let kept = "SELECT count(*) FROM queue_attachments WHERE messages = ?1";
    let kept = |messages: i64| connection.query_row(kept, [messages], |row| row.get(0));
    for _ in 0..4 {
        let accepted = accept::<Notice>(&service).await;
        accepted.complete().await.expect("completed");
    }
    assert_eq!(kept(1), Ok(4), "nothing is left to be removed");
    let expected = [0, 0, 1, 1].map(|text: usize| notice(&texts[text]));
    assert_eq!(service.submitted::<Notice>(), expected);
}

#[tokio::test]
async fn clones_share_the_file_and_the_last_one_deletes_its_folder() {
    let service = testing::service_on_sqlite().await;
    let other = testing::service_on_sqlite().await;
    let (folder, of_other) = (folder(&service), folder(&other));
    let clone: TestService = service.clone();
    clone.submit(deposit(1)).await.expect("submitted");
    assert_eq!(service.submitted::<Deposit>(), [deposit(1)]);
    assert!(other.submitted::<Deposit>().is_empty());
    drop(service);
    let delivery = accept::<Deposit>(&clone).await;
    let plain = QueueService::from(clone);
    plain.submit(deposit(2)).await.expect("still there");
    drop(plain);
    assert!(folder.exists(), "the delivery needs it");
    delivery.complete().await.expect("completed");
    gone(&folder).await;
    assert!(of_other.exists());
    drop(other);
    gone(&of_other).await;
}

#[test]
fn the_folder_is_deleted_with_the_runtime_of_a_listener() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    let folder = runtime.block_on(async {
        let service = testing::service_on_sqlite().await;
        let insert = in_transaction(|_, _: &Received<Deposit>| {});
        let listener = service.listener(insert).start().expect("started");
        service.submit(deposit(1)).await.expect("submitted");
        let drained = drain([&listener]).timeout(GUARD).await.expect("drained");
        assert_eq!(drained.completed(), 1);
        folder(&service)
    });
    drop(runtime);
    assert!(!folder.exists());
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "Tokio's time is paused")]
async fn paused_time_is_refused() {
    drop(testing::service_on_sqlite().await);
}

#[tokio::test]
#[should_panic(expected = "Tokio's time is paused")]
async fn a_drain_in_time_that_is_paused_later_is_refused() {
    let service = testing::service_on_sqlite().await;
    let listener = service.listener(async |_: Received<Deposit>| {}).start();
    let listener = listener.expect("started");
    tokio::time::pause();
    drop(drain([&listener]).await);
}
