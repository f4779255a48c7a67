//! When a receive was sent, which may be later than when it was asked for.

use std::future::ready;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use queue_core::clock::Clock;
use queue_core::internal::LockExt as _;
use tokio_util::sync::CancellationToken;

tokio::task_local! {
    static CURRENT: SendTime;
}

/// When a receive was sent. The leases of received messages count from when the receive was sent, maybe long after the
/// backend was asked, because a receive first waits for its token.
///
/// The asker has the receive run [within](Self::scope) a `SendTime`, through all backends above the one that waits, if
/// any does.
#[derive(Debug, Clone, Default)]
pub(crate) struct SendTime(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    /// The token, created once anybody asks.
    given_up: OnceLock<CancellationToken>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of requests that wait.
    waiting: usize,
    /// When the first request was sent, on the monotonic clock.
    sent_at: Option<Duration>,
    /// Whether a request is not sent if it would have to wait.
    is_hurried: bool,
}

impl SendTime {
    /// Returns the `SendTime` of the current task, or a new one.
    pub(crate) fn current() -> Self {
        CURRENT.try_with(Self::clone).unwrap_or_default()
    }

    /// Makes a call to a backend whose receives are recorded here.
    pub(crate) fn scope<F: Future>(&self, call: F) -> impl Future<Output = F::Output> + use<F> {
        CURRENT.scope(self.clone(), call)
    }

    /// Returns the time from which the answer's leases count: `asked_at`, if nothing was waited for.
    pub(crate) fn counts_from(&self, asked_at: Duration, clock: &dyn Clock) -> Duration {
        let state = self.0.state.hold();
        match state.sent_at {
            Some(sent_at) => sent_at,
            None if state.waiting > 0 => clock.monotonic(),
            None => asked_at,
        }
    }

    /// Has a receive that waits fail, and later ones that would have to wait.
    pub(crate) fn give_up(&self) {
        self.token().cancel();
    }

    /// Waits until nobody waits for the answer any more. A given-up receive ends on another runtime, maybe because its
    /// own has been shut down: whoever selects between `given_up` and a timer asks `given_up` first, as a timer of a
    /// runtime that is gone panics when it is polled.
    pub(crate) async fn given_up(&self) {
        self.token().cancelled().await;
    }

    fn token(&self) -> &CancellationToken {
        self.0.given_up.get_or_init(CancellationToken::new)
    }

    /// Forgets when an earlier receive was sent. If `hurried`, the next receives fail if they would have to wait.
    pub(crate) fn restart(&self, hurried: bool) {
        let mut state = self.0.state.hold();
        (state.sent_at, state.is_hurried) = (None, hurried);
    }

    /// Waits for the token of a receive, and records that it is sent. Returns false if it must not be sent, because
    /// whoever asked for the receive does not wait.
    pub(crate) async fn after(&self, token: impl Future<Output = ()>, clock: &dyn Clock) -> bool {
        let waiting = Waiting::begin(self);
        let is_hurried = self.0.state.hold().is_hurried;
        let has_token = tokio::select! {
            biased;
            () = self.given_up() => false,
            () = token => true,
            () = ready(()), if is_hurried => false,
        };
        if has_token {
            let mut state = self.0.state.hold();
            state.sent_at.get_or_insert(clock.monotonic());
        }
        drop(waiting);
        has_token
    }
}

struct Waiting<'a>(&'a SendTime);

impl<'a> Waiting<'a> {
    fn begin(sending: &'a SendTime) -> Self {
        sending.0.state.hold().waiting += 1;
        Self(sending)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.0.state.hold().waiting -= 1;
    }
}
