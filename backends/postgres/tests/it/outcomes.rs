//! What an error proves, and who suffers from it: a connection that is lost, an operation that the server refuses, and
//! rows that another transaction holds.

use std::sync::Arc;
use std::time::Duration;

use queue_clock::SystemClock;
use queue_core::backend::{Backend as _, BackendExt as _, NewMessage, Op};
use queue_core::{Error, ErrorKind, Outcome, QueueName};
use queue_postgres::PostgresBackend;

use crate::server::{Schema, block_on};

static ORDERS: QueueName = QueueName::from_static("orders");
const LEASE: Duration = Duration::from_secs(60);

/// Ends the session in which a row is written, or refuses the row.
const TROUBLE: &str = "
    CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN IF NEW.body = 'bad' THEN RAISE EXCEPTION 'refused'; END IF; RETURN NULL; END $$;";

async fn open(options: &str) -> (Schema, PostgresBackend) {
    let schema = Schema::new();
    let url = format!("{}{options}", schema.url());
    let opened = PostgresBackend::open(&url, Arc::new(SystemClock::new())).await;
    let backend = opened.expect("open");
    backend.ensure_queue(&ORDERS).await.expect("created");
    schema.execute(TROUBLE).await;
    (schema, backend)
}

async fn put(backend: &PostgresBackend, body: &'static str) -> Result<(), Error> {
    backend.put(&ORDERS, NewMessage::new(body)).await.map(drop)
}

async fn count(backend: &PostgresBackend) -> usize {
    let properties = backend.properties(&ORDERS).await;
    properties.expect("read").approximate_count
}

#[test]
fn a_connection_that_is_lost_within_the_commit_leaves_the_outcome_unknown() {
    block_on(async {
        for (deferred, puts, outcome) in [
            ("DEFERRABLE INITIALLY DEFERRED", 2, Outcome::Unknown),
            ("", 2, Outcome::NotDone),
            // A single statement is committed by itself.
            ("", 1, Outcome::Unknown),
        ] {
            let (schema, backend) = open("").await;
            let create = format!(
                "CREATE CONSTRAINT TRIGGER trouble AFTER INSERT ON messages {deferred} \
                 FOR EACH ROW EXECUTE FUNCTION lose()"
            );
            schema.execute(&create).await;
            let one = Op::Put {
                queue: ORDERS.clone(),
                message: NewMessage::new("one"),
            };
            let lost = backend.apply(vec![one; puts].into()).await;
            let lost = lost.expect_err("the connection is lost").error;
            assert_eq!(
                (lost.kind(), lost.outcome()),
                (ErrorKind::Unreachable, outcome),
                "{lost:?}"
            );
            schema.execute("DROP TRIGGER trouble ON messages").await;
            put(&backend, "two").await.expect("connected again");
            assert_eq!(count(&backend).await, 1);
        }
    });
}

#[test]
fn a_receive_that_is_lost_is_unknown_and_leases_nothing_for_ever() {
    block_on(async {
        let (schema, backend) = open("").await;
        put(&backend, "one").await.expect("put");
        schema
            .execute("CREATE TRIGGER trouble AFTER UPDATE ON messages FOR EACH ROW EXECUTE FUNCTION lose()")
            .await;
        let lost = backend
            .receive(&ORDERS, 1, LEASE)
            .await
            .expect_err("the connection is lost");
        assert_eq!(lost.outcome(), Outcome::Unknown, "{lost:?}");
        schema.execute("DROP TRIGGER trouble ON messages").await;
        let received = backend
            .receive(&ORDERS, 1, LEASE)
            .await
            .expect("connected again");
        assert_eq!(received.len(), 1, "it was not committed");
    });
}

#[test]
fn receives_of_several_queues_share_a_commit() {
    block_on(async {
        let (_schema, backend) = open("").await;
        let names = ["orders-a", "orders-b", "orders-c", "missing"]
            .map(|name| QueueName::new(name).expect("a name"));
        let [a, b, c, missing] = &names;
        for queue in [a, b, c] {
            backend.ensure_queue(queue).await.expect("created");
            for _ in 0..2 {
                let put = backend
                    .put(queue, NewMessage::new(queue.as_str().to_owned()))
                    .await;
                put.expect("put");
            }
        }
        // The first goes alone, the others together.
        let received = tokio::join!(
            backend.receive(a, 1, LEASE),
            backend.receive(a, 1, LEASE),
            backend.receive(b, 2, LEASE),
            backend.receive(missing, 1, LEASE),
            backend.receive(c, 1, LEASE),
            backend.receive(c, 5, 2 * LEASE),
        );
        let absent = received.3.expect_err("there is no such queue");
        assert_eq!(absent.kind(), ErrorKind::QueueNotFound);
        for (queue, count, received) in [
            (a, 1, received.0),
            (a, 1, received.1),
            (b, 2, received.2),
            (c, 1, received.4),
            (c, 1, received.5),
        ] {
            let received = received.expect("received");
            assert_eq!(received.len(), count, "{queue}");
            for message in received {
                assert_eq!(message.body, queue.as_str());
                let deleted = backend.delete(queue, &message.id, &message.receipt).await;
                deleted.expect("its receipt is valid");
            }
        }
    });
}

#[test]
fn an_operation_that_the_server_refuses_spares_the_others() {
    block_on(async {
        for deferred in ["", "DEFERRABLE INITIALLY DEFERRED"] {
            let (schema, backend) = open("").await;
            let create = format!(
                "CREATE CONSTRAINT TRIGGER trouble AFTER INSERT ON messages {deferred} \
                 FOR EACH ROW EXECUTE FUNCTION refuse()"
            );
            schema.execute(&create).await;
            let put = |body| put(&backend, body);
            // The first goes alone, the others together.
            let done = tokio::join!(
                put("one"),
                put("two"),
                put("bad"),
                put("three"),
                put("bad"),
                put("four")
            );
            let (one, two, bad, three, worse, four) = done;
            for good in [one, two, three, four] {
                good.expect("put");
            }
            for bad in [bad, worse] {
                let refused = bad.expect_err("refused");
                assert_eq!(
                    (refused.kind(), refused.outcome()),
                    (ErrorKind::Storage, Outcome::NotDone)
                );
                assert!(format!("{refused:?}").contains("refused"), "{refused:?}");
            }
            assert_eq!(count(&backend).await, 4);
        }
    });
}

#[test]
fn what_another_transaction_holds_is_waited_for_apart() {
    block_on(async {
        let (schema, backend) = open("").await;
        for body in ["held", "free"] {
            put(&backend, body).await.expect("put");
        }
        let received = backend.receive(&ORDERS, 2, LEASE).await.expect("received");
        let [held, free] = &received[..] else {
            panic!("two are visible: {received:?}");
        };
        put(&backend, "visible").await.expect("put");
        let other = schema.connect().await;
        let lock = format!(
            "BEGIN; SELECT FROM messages WHERE seq = {} OR body = 'visible' FOR UPDATE",
            held.id
        );
        other.batch_execute(&lock).await.expect("locked");
        let delete = |id, receipt| backend.delete(&ORDERS, id, receipt);
        let done = tokio::join!(
            put(&backend, "first"),
            delete(&held.id, &held.receipt),
            delete(&free.id, &free.receipt),
            put(&backend, "last"),
        );
        done.0.expect("put");
        let busy = done.1.expect_err("another transaction holds it");
        assert_eq!(
            (busy.kind(), busy.outcome()),
            (ErrorKind::Timeout, Outcome::NotDone),
            "{busy:?}"
        );
        done.2.expect("deleted");
        done.3.expect("put");
        let received = backend.receive(&ORDERS, 10, LEASE).await.expect("received");
        let bodies: Vec<_> = received.iter().map(|one| &one.body[..]).collect();
        assert_eq!(bodies, [&b"first"[..], b"last"]);

        other.batch_execute("COMMIT").await.expect("committed");
        delete(&held.id, &held.receipt).await.expect("deleted");
        let received = backend.receive(&ORDERS, 10, LEASE).await.expect("received");
        assert_eq!(received.len(), 1, "what was passed over is found");
        assert_eq!(received[0].body, "visible");
    });
}

#[test]
fn commits_wait_for_the_disk_unless_more_is_asked_for() {
    block_on(async {
        for (set, expected) in [
            ("off", "on"),
            ("on", "on"),
            ("local", "local"),
            ("remote_write", "remote_write"),
        ] {
            let (schema, backend) =
                open(&format!("&options=-c%20synchronous_commit%3D{set}")).await;
            schema
                .execute(
                    "CREATE TABLE seen (setting text);
                     CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                        INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$;
                     CREATE TRIGGER see AFTER INSERT OR UPDATE ON messages FOR EACH ROW EXECUTE FUNCTION see()",
                )
                .await;
            put(&backend, "one").await.expect("put");
            backend.receive(&ORDERS, 1, LEASE).await.expect("received");
            let client = schema.connect().await;
            let rows = client
                .query("SELECT setting FROM seen", &[])
                .await
                .expect("read");
            let seen: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
            assert_eq!(seen, [expected, expected], "with {set}");
        }
    });
}
