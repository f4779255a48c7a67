//! The response to the creation of a blob is lost, and the client repeats the request.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

use mosaic::storage::azure::Account;
use mosaic::storage::records::{Records, SliceRecord};
use mosaic::storage::store::Store;
use mosaic::workflow::messages::SliceOutcome;
use queue_runtime::RequestId;

use crate::server::SERVER;

/// A proxy that drops the responses to the next `left` creations of a blob, and forwards all else.
struct Lossy {
    port: u16,
    left: Arc<AtomicUsize>,
}

impl Lossy {
    fn before(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let left = Arc::new(AtomicUsize::new(0));
        let losing = Arc::clone(&left);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let server = TcpStream::connect(("127.0.0.1", server)).expect("a server");
                let losing = Arc::clone(&losing);
                thread::spawn(move || forward(&client, &server, &losing));
            }
        });
        Self { port, left }
    }
}

/// Forwards requests and, on another thread, responses.
fn forward(mut client: &TcpStream, mut server: &TcpStream, losing: &AtomicUsize) {
    let creating = AtomicUsize::new(0);
    let mut buffer = vec![0; 1 << 16];
    thread::scope(|scope| {
        let creating = &creating;
        scope.spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while let Ok(read @ 1..) = server.read(&mut buffer) {
                if creating.swap(0, SeqCst) > 0 && losing.load(SeqCst) > 0 {
                    losing.fetch_sub(1, SeqCst);
                    break;
                }
                if client.write_all(&buffer[..read]).is_err() {
                    break;
                }
            }
            for end in [client, server] {
                // Fails if the other side has closed the connection.
                let _ = end.shutdown(Shutdown::Both);
            }
        });
        while let Ok(read @ 1..) = client.read(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..read]).to_ascii_lowercase();
            creating.fetch_add(usize::from(text.contains("if-none-match: *")), SeqCst);
            if server.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
    });
}

#[tokio::test]
async fn a_record_holds_though_the_response_to_its_creation_was_lost() {
    let (url, port) = (SERVER.connection_string("lost"), SERVER.blob_port());
    let lossy = Lossy::before(port);
    let url = url.replace(&format!(":{port}/"), &format!(":{}/", lossy.port));
    let store = Store::azure(Account::parse(&url)).await;
    let records = Records::new(store.expect("it is there"));
    let request = RequestId::new("a").expect("an id");
    let record = |reason: &str| SliceRecord {
        outcome: SliceOutcome::Failed {
            reason: reason.to_owned(),
        },
        attempts: 1,
    };

    lossy.left.store(1, SeqCst);
    let mine = records.record_slice(&request, 0, record("mine")).await;
    assert_eq!(lossy.left.load(SeqCst), 0, "no response was lost");
    assert_eq!(mine.expect("the creation is repeated"), record("mine"));

    let another = records.record_slice(&request, 0, record("another")).await;
    assert_eq!(another.expect("it is found"), record("mine"));
}
