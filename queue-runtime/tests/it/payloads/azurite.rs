//! A container of the same account, on Azurite.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use queue_runtime::QueueService;
use queue_runtime::backend::{AzureBackend, Backend as _};
use queue_runtime::clock::SystemClock;
use queue_tests::azurite::Azurite;

use crate::payloads::scenes::{SCENES, interrupt};
use crate::payloads::support::{World, goes_through, goes_through_all, objects};

const MIB: usize = 1024 * 1024;
const CONTAINER: &str = "payloads";

/// More requests than any scene makes.
const POINTS: usize = 16;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Azurite"]
async fn a_large_message_goes_through_all_on_azurite() {
    let server = Azurite::start(&["films"]).expect("starts");
    let url = server.connection_string("films");
    let backend = AzureBackend::builder(&url, Arc::new(SystemClock::new()));
    let backend = backend.deadline(Duration::from_secs(60)).open().await;
    let service = QueueService::with_backend(Arc::new(backend.expect("opens")));
    let service = service.payload_container(CONTAINER).connect().await;
    let service = service.expect("connects");
    goes_through_all(&service, 5 * MIB).await;
    goes_through(&service, 63 * MIB).await;
    let store = service.backend().payload_store(CONTAINER).expect("a name");
    let store = store.expect("it has containers");
    assert_eq!(objects(&*store, "data/").await, Vec::<String>::new());
}

async fn world(server: &Azurite, account: &str) -> World {
    let url = server.connection_string(account);
    let builder = AzureBackend::builder(&url, Arc::new(SystemClock::new()));
    let storage = builder.deadline(Duration::from_secs(60)).open().await;
    let storage = storage.expect("opens");
    let store = storage.payload_store(CONTAINER).expect("a name");
    World::of(Arc::new(storage), store.expect("it has containers"))
}

/// Returns how often a process was interrupted.
async fn interrupt_everywhere(comes_back: bool) -> usize {
    let places = SCENES
        .iter()
        .flat_map(|scene| (0..POINTS).map(move |requests| (scene, requests)));
    let places: Vec<_> = places.collect();
    let accounts: Vec<_> = (0..places.len())
        .map(|account| format!("account{account}"))
        .collect();
    let names: Vec<_> = accounts.iter().map(String::as_str).collect();
    let server = &Azurite::start(&names).expect("starts");
    let runs = places
        .iter()
        .zip(&accounts)
        .map(async |((scene, requests), account)| {
            let interrupted = interrupt(world(server, account).await, scene, *requests, comes_back);
            usize::from(interrupted.await)
        });
    join_all(runs).await.into_iter().sum()
}

/// `PAYLOAD_INTERRUPTIONS` asks for more of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Azurite, and takes two minutes"]
async fn a_process_dies_between_any_two_requests_on_azurite() {
    let wanted = std::env::var("PAYLOAD_INTERRUPTIONS").ok();
    let wanted = wanted.map_or(50, |wanted| wanted.parse().expect("a number"));
    let (mut interruptions, mut comes_back) = (0, false);
    while interruptions < wanted {
        let more = interrupt_everywhere(comes_back).await;
        assert!(more > 0, "nothing was interrupted");
        interruptions += more;
        println!("{interruptions} interruptions");
        comes_back = !comes_back;
    }
}
