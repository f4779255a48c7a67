use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use queue_tests::postgres::PostgresServer;
use rand::RngExt as _;
use rand::rngs::SmallRng;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use super::Faults;
use crate::process::GUARD;

/// All connections end.
pub const CUT: &str = "cut";
/// The server carries out what it is sent, and its answers are lost, until all connections end.
pub const DEAF: &str = "answers lost";
/// All connections end, and no new ones are made for a while.
pub const REFUSED: &str = "refused";
/// Nothing is carried for a while.
pub const STALLED: &str = "stalled";

/// How long a fault takes at least, in milliseconds: longer or shorter than a lease, and less than what the engine takes
/// for a lost connection.
const MILLISECONDS: std::ops::RangeInclusive<u64> = 10..=1500;

/// A server behind a proxy that cuts, refuses and stalls connections.
#[derive(Debug)]
pub struct Network {
    server: PostgresServer,
    address: SocketAddr,
    proxy: Arc<Proxy>,
    /// The faults that are still to come before all have struck equally often.
    deck: Vec<&'static str>,
    /// Runs the proxy.
    _runtime: Runtime,
}

#[derive(Debug)]
struct Proxy {
    state: watch::Sender<State>,
    /// What the proxy has not carried: answers of the server, among them those to a commit, and what had to wait.
    lost: AtomicUsize,
    lost_commits: AtomicUsize,
    refused: AtomicUsize,
    held: AtomicUsize,
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    weather: Weather,
    /// Connections that began with another number have ended.
    cuts: usize,
    /// Whether connections that end are reset, and not closed.
    resets: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Weather {
    #[default]
    Fair,
    Deaf,
    Refusing,
    Stalled,
}

impl Network {
    /// Starts a server and the proxy.
    ///
    /// # Panics
    /// If they do not start.
    #[must_use]
    pub fn start() -> Self {
        let server = PostgresServer::start().expect("PostgreSQL starts");
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let runtime = runtime.expect("a thread starts");
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
        let listener = listener.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let proxy = Arc::new(Proxy {
            state: watch::Sender::default(),
            lost: AtomicUsize::new(0),
            lost_commits: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
        });
        runtime.spawn(Arc::clone(&proxy).serve(listener, server.port()));
        Self {
            server,
            address,
            proxy,
            deck: Vec::new(),
            _runtime: runtime,
        }
    }

    /// Lets a fault last until it has been noticed, and for some time.
    fn last(&self, random: &mut SmallRng, noticed: &AtomicUsize) {
        let before = noticed.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(random.random_range(MILLISECONDS)));
        let started = Instant::now();
        while noticed.load(Ordering::Relaxed) == before {
            assert!(started.elapsed() < GUARD, "nobody uses the network");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Faults for Network {
    fn direct(&self) -> String {
        self.server.url().to_owned()
    }

    fn address(&self) -> String {
        format!("postgres://postgres@{}/postgres", self.address)
    }

    fn strike(&mut self, random: &mut SmallRng) -> Option<&'static str> {
        if self.deck.is_empty() {
            self.deck = vec![CUT, DEAF, REFUSED, STALLED];
        }
        let at = random.random_range(0..self.deck.len());
        let fault = self.deck.swap_remove(at);
        let proxy = &self.proxy;
        let resets = random.random();
        match fault {
            CUT => {}
            DEAF => {
                proxy.set(Weather::Deaf);
                self.last(random, &proxy.lost);
            }
            REFUSED => {
                proxy.cut(Weather::Refusing, resets);
                self.last(random, &proxy.refused);
            }
            _ => {
                proxy.set(Weather::Stalled);
                self.last(random, &proxy.held);
            }
        }
        match fault {
            CUT | DEAF => proxy.cut(Weather::Fair, resets),
            _ => proxy.set(Weather::Fair),
        }
        Some(fault)
    }

    fn end(&mut self) -> Option<&'static str> {
        let counted = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        println!(
            "{} answers were lost, of which {} were to a commit; {} connections were refused; {} parts had to wait",
            counted(&self.proxy.lost),
            counted(&self.proxy.lost_commits),
            counted(&self.proxy.refused),
            counted(&self.proxy.held),
        );
        None
    }
}

impl Proxy {
    fn set(&self, weather: Weather) {
        self.state.send_modify(|state| state.weather = weather);
    }

    fn cut(&self, weather: Weather, resets: bool) {
        self.state.send_modify(|state| {
            *state = State {
                weather,
                cuts: state.cuts + 1,
                resets,
            };
        });
    }

    async fn serve(self: Arc<Self>, listener: TcpListener, server: u16) {
        while let Ok((client, _)) = listener.accept().await {
            let proxy = Arc::clone(&self);
            // Fails as connections do.
            tokio::spawn(async move { proxy.connect(client, server).await });
        }
    }

    async fn connect(&self, mut client: TcpStream, server: u16) -> io::Result<()> {
        let mut state = self.state.subscribe();
        let State { weather, cuts, .. } = *state.borrow();
        if weather == Weather::Refusing {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return client.set_zero_linger();
        }
        let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let resets = tokio::select! {
            ended = self.carry(from_client, to_server, Direction::ToServer) => return ended,
            ended = self.carry(from_server, to_client, Direction::ToClient) => return ended,
            cut = state.wait_for(|state| state.cuts != cuts) => cut.is_ok_and(|state| state.resets),
        };
        if resets {
            client.set_zero_linger()?;
            server.set_zero_linger()?;
        }
        Ok(())
    }

    /// Carries bytes in one direction until it ends.
    async fn carry(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        direction: Direction,
    ) -> io::Result<()> {
        let mut state = self.state.subscribe();
        let mut part = vec![0; 16 * 1024];
        loop {
            let read = from.read(&mut part).await?;
            if read == 0 {
                return Ok(());
            }
            let weather = state.borrow_and_update().weather;
            match weather {
                Weather::Deaf if direction == Direction::ToClient => {
                    self.lose(&part[..read]);
                    continue;
                }
                Weather::Stalled => {
                    self.held.fetch_add(1, Ordering::Relaxed);
                    let is_over = |state: &State| state.weather != Weather::Stalled;
                    // The proxy is as old as the connection.
                    drop(state.wait_for(is_over).await);
                }
                _ => {}
            }
            to.write_all(&part[..read]).await?;
        }
    }

    fn lose(&self, answer: &[u8]) {
        const COMMITTED: &[u8] = b"COMMIT\0";

        self.lost.fetch_add(1, Ordering::Relaxed);
        if answer
            .windows(COMMITTED.len())
            .any(|part| part == COMMITTED)
        {
            self.lost_commits.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToClient,
}
