//! Messages that are submitted from SQL.

use queue_runtime::Received;
use tokio::sync::mpsc;

use crate::bank::{Bank, GUARD, Notice};
use crate::wakeups::Hourly;

#[tokio::test(flavor = "multi_thread")]
async fn what_a_trigger_submits_is_handled_if_it_is_committed() {
    let mut bank = Bank::open().await;
    let schema = &bank.schema;
    let trigger = format!(
        "CREATE FUNCTION {schema}.tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            PERFORM {schema}.submit('notices', 'notice', jsonb_build_object('text', NEW.number::text));
            RETURN NULL;
        END $$;
        CREATE TRIGGER tell AFTER INSERT ON {schema}.account FOR EACH ROW EXECUTE FUNCTION {schema}.tell()"
    );
    bank.client.batch_execute(&trigger).await.expect("created");
    let (send, mut handled) = mpsc::unbounded_channel();
    let handler = move |notice: Received<Notice>| {
        let text = send.send(notice.text.clone());
        async move { text.map_err(|error| error.to_string()) }
    };
    let listener = bank.service.listener(handler).idle(Hourly);
    let listener = listener.start().expect("it starts");
    let insert = format!("INSERT INTO {schema}.account VALUES ($1, 10)");
    let tx = bank.client.transaction().await.expect("begun");
    tx.execute(&insert, &[&1]).await.expect("inserted");
    tx.rollback().await.expect("rolled back");
    bank.client.execute(&insert, &[&2]).await.expect("inserted");
    let text = tokio::time::timeout(GUARD, handled.recv()).await;
    assert_eq!(text.expect("it is woken").as_deref(), Some("2"));
    listener.shutdown(GUARD).await;
    bank.assert(1, 0, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_a_message_is_an_error_that_says_what_is_allowed() {
    let bank = Bank::open().await;
    for (arguments, told) in [
        ("'Orders', 'a', '1'", "3 to 63 lower-case letters"),
        ("'or', 'a', '1'", "3 to 63 lower-case letters"),
        ("'a--b', 'a', '1'", "3 to 63 lower-case letters"),
        ("NULL, 'a', '1'", "3 to 63 lower-case letters"),
        ("'orders', '', '1'", "1 to 1024"),
        ("'orders', 'a', NULL", "also `null`"),
        ("'orders', 'a', '1', '8 days'", "0 to 7 days"),
        ("'orders', 'a', '1', '-1 second'", "0 to 7 days"),
        ("'orders', 'a', '1', '0', ''", "1 to 1024"),
        ("'orders', 'a', '1', '0', NULL, 0", "numbers from 1"),
        (
            "'orders', 'a', to_jsonb(repeat('x', 50000))",
            "a table of your own",
        ),
    ] {
        let submit = format!("SELECT {}.submit({arguments})", bank.schema);
        let refused = bank.client.batch_execute(&submit).await.expect_err(&submit);
        let refused = refused.as_db_error().expect("the server's");
        let hint = refused.hint().unwrap_or_default();
        assert!(hint.contains(told), "{submit}: {refused:?}");
    }
    assert_eq!(bank.service.queues().await.expect("listed"), []);
}
