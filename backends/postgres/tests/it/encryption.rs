//! Connections that are encrypted.

use std::error::Error as _;
use std::sync::Arc;

use queue_clock::SystemClock;
use queue_core::QueueName;
use queue_core::backend::{BackendExt as _, NewMessage};
use queue_postgres::PostgresBackend;
use queue_tests::postgres::PostgresServer;
use rcgen::{CertifiedKey, generate_simple_self_signed};

use crate::server::{Schema, block_on};

static ORDERS: QueueName = QueueName::from_static("orders");

fn certificate(host: &str) -> (String, String) {
    let made = generate_simple_self_signed([host.to_owned()]);
    let CertifiedKey { cert, signing_key } = made.expect("a certificate");
    (cert.pem(), signing_key.serialize_pem())
}

#[test]
fn connections_are_encrypted_to_a_server_whose_certificate_is_verified() {
    block_on(async {
        let (own, key) = certificate("127.0.0.1");
        let server = PostgresServer::builder()
            .encrypted(&own, &key)
            .start()
            .expect("it starts");
        let schema = Schema::on(&server);
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("written");
            path.display().to_string()
        };
        let open = async |options: &str| {
            let url = format!("{}&sslmode=verify-full{options}", schema.url());
            PostgresBackend::open(&url, Arc::new(SystemClock::new())).await
        };
        let trusted = format!("&sslrootcert={}", file("own.pem", &own));
        let backend = open(&trusted).await.expect("it is trusted");
        backend.ensure_queue(&ORDERS).await.expect("created");
        backend
            .put(&ORDERS, NewMessage::new("one"))
            .await
            .expect("put");
        let client = schema.connect().await;
        let encrypted = "SELECT count(*) FILTER (WHERE ssl), count(*) FILTER (WHERE NOT ssl)
            FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = $1";
        let row = client.query_one(encrypted, &[&schema.name()]).await;
        let row = row.expect("counted");
        assert!(row.get::<_, i64>(0) > 0);
        assert_eq!(row.get::<_, i64>(1), 0);

        let other = file("other.pem", &certificate("127.0.0.1").0);
        for untrusted in ["", &format!("&sslrootcert={other}")] {
            let refused = open(untrusted).await.expect_err("it is not trusted");
            let cause = refused.source().expect("a cause").to_string();
            assert!(cause.contains("certificate"), "{cause}");
        }
    });
}
