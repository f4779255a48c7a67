//! Panics of handlers and callbacks, which are caught.
//!
//! `catch_unwind` returns a panic's message only. A program that wants the location and the backtrace too calls
//! [`capture_locations`] once.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Once};
use std::task::Poll;

use queue_core::internal::{MAX_ERROR, shorten};

/// A caught panic of a handler or a callback.
///
/// The text of a `CaughtPanic` is the message of the panic, and the location if [`capture_locations`] was called:
/// `out of cheese (at src/main.rs:12:9)`.
///
/// ```
/// use queue_runtime::{ListenerEventKind, Message, Received, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let service = testing::service().await;
/// let listener = service
///     .listener(async |order: Received<Order>| assert_ne!(order.number, 13, "bad luck"));
/// let mut events = listener.events();
/// let listener = listener.start()?;
/// service.submit(Order { number: 13 }).await?;
///
/// let panicked = loop {
///     if let ListenerEventKind::HandlerPanicked { panic, .. } = events.recv().await?.kind {
///         break panic;
///     }
/// };
/// eprintln!("the handler panicked: {panicked}");
/// if let Some(backtrace) = panicked.backtrace() {
///     eprintln!("{backtrace}");
/// }
/// assert!(panicked.message().contains("bad luck"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct CaughtPanic {
    message: Arc<str>,
    site: Site,
}

/// The details of a panic that only the panic hook sees.
#[derive(Debug, Clone, Default)]
struct Site {
    location: Option<Arc<str>>,
    backtrace: Option<Arc<Backtrace>>,
}

/// The message of a panic without a text.
const NOT_A_STRING: &str = "a value that is not a string";

thread_local! {
    /// Whether this thread is running code inside [`catch`].
    static CATCHING: Cell<bool> = const { Cell::new(false) };
    static LATEST: RefCell<Option<Site>> = const { RefCell::new(None) };
}

impl CaughtPanic {
    /// Returns the panic message, or a placeholder if the panic's value is not a string.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the source location as `file:line:column`. Returns `None` unless [`capture_locations`] was called, or if
    /// the program has later installed a panic hook that does not call the previous one.
    #[must_use]
    pub fn location(&self) -> Option<&str> {
        self.site.location.as_deref()
    }

    /// Returns the backtrace that [`capture_locations`] has recorded, if any.
    #[must_use]
    pub fn backtrace(&self) -> Option<&Backtrace> {
        self.site.backtrace.as_deref()
    }
}

impl fmt::Display for CaughtPanic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match self.location() {
            Some(location) => write!(f, " (at {location})"),
            None => Ok(()),
        }
    }
}

/// Records the location of each caught panic, and its backtrace if `RUST_BACKTRACE` or `RUST_LIB_BACKTRACE` enables it,
/// for [`CaughtPanic`], poison records and logs.
///
/// Installs a panic hook for the whole process, which calls the previous hook: call `capture_locations` once, at the
/// start of `main`, after the program's own hook is installed. Further calls do nothing. Rust's default hook also
/// prints the backtrace.
///
/// ```
/// use queue_runtime::QueueService;
///
/// #[tokio::main(flavor = "current_thread")]
/// async fn main() -> Result<(), Box<dyn std::error::Error>> {
///     queue_runtime::panic::capture_locations();
///     let service = QueueService::connect("memory:").await?;
/// #   let _ = service;
///     Ok(())
/// }
/// ```
///
/// # Panics
/// Panics if the current thread is panicking.
pub fn capture_locations() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let next = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if CATCHING.get() {
                LATEST.set(Some(Site::of(info)));
            }
            next(info);
        }));
    });
}

/// Runs a future and catches its panic, as the library does with handlers.
///
/// # Errors
/// The panic.
pub async fn catch_async<T>(future: impl Future<Output = T>) -> Result<T, CaughtPanic> {
    let mut future = pin!(future);
    poll_fn(|cx| match catch(|| future.as_mut().poll(cx)) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// Writes to the log where a panic must not spread: a subscriber of the application may panic.
pub(crate) fn log_caught(log: impl FnOnce()) {
    // The panic hook has reported the panic.
    let _ = catch(log);
}

/// Runs code and catches its panic, as the library does with callbacks.
///
/// ```
/// use queue_runtime::panic::catch;
///
/// let caught = catch(|| panic!("out of cheese")).unwrap_err();
/// assert_eq!(caught.message(), "out of cheese");
/// ```
///
/// # Errors
/// The panic.
pub fn catch<T>(code: impl FnOnce() -> T) -> Result<T, CaughtPanic> {
    let outer = CATCHING.replace(true);
    LATEST.set(None);
    let caught = catch_unwind(AssertUnwindSafe(code));
    CATCHING.set(outer);
    caught.map_err(|payload| {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        CaughtPanic {
            message: shorten(text.unwrap_or(NOT_A_STRING), MAX_ERROR).into(),
            site: LATEST.take().unwrap_or_default(),
        }
    })
}

impl Site {
    fn of(info: &PanicHookInfo<'_>) -> Self {
        let backtrace = Backtrace::capture();
        let captured = backtrace.status() == BacktraceStatus::Captured;
        Self {
            location: info.location().map(|location| location.to_string().into()),
            backtrace: captured.then(|| Arc::new(backtrace)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_panic_keeps_its_message_and_location() {
        capture_locations();
        let line = line!() + 1;
        let caught = catch(|| panic!("out of {}", "cheese")).expect_err("it panics");
        assert_eq!(caught.message(), "out of cheese");
        let location = caught.location().expect("the hook is installed");
        let here = format!("{}:{line}:", file!());
        assert!(location.starts_with(&here), "{location} is not {here}");
        assert_eq!(caught.to_string(), format!("out of cheese (at {location})"));
        let enabled = Backtrace::capture().status() == BacktraceStatus::Captured;
        assert_eq!(caught.backtrace().is_some(), enabled);
    }

    #[test]
    fn a_panic_with_another_value_is_caught_too() {
        let caught = catch(|| std::panic::panic_any(7)).expect_err("it panics");
        assert_eq!(caught.message(), NOT_A_STRING);
    }

    #[test]
    fn the_hook_of_the_application_still_runs_for_every_panic() {
        static CALLS: AtomicUsize = AtomicUsize::new(0);

        capture_locations();
        let next = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if info.payload().downcast_ref::<&str>() == Some(&"counted") {
                CALLS.fetch_add(1, Ordering::SeqCst);
            }
            next(info);
        }));
        let caught = catch(|| panic!("counted")).expect_err("it panics");
        assert!(caught.location().is_some());
        catch_unwind(|| panic!("counted")).expect_err("it panics");
        assert_eq!(CALLS.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn no_hook_is_installed_unless_the_program_asks_for_it() {
        const NAME: &str =
            "kernel::panic::tests::no_hook_is_installed_unless_the_program_asks_for_it";
        const CHILD: &str = "QUEUE_RUNTIME_TEST_CHILD";

        struct CatchesInDrop;

        impl Drop for CatchesInDrop {
            fn drop(&mut self) {
                catch(|| ()).expect("no panic");
            }
        }

        // In a process of its own, in which no other test has asked for locations.
        if std::env::var_os(CHILD).is_none() {
            let mut child = Command::new(std::env::current_exe().expect("the test's program"));
            let child = child.args(["--exact", NAME]).env(CHILD, "1").output();
            let output = String::from_utf8(child.expect("it starts").stdout).expect("UTF-8");
            return assert!(output.contains("1 passed"), "{output}");
        }
        // The first `catch` may come while the thread panics.
        catch_unwind(|| {
            let _guard = CatchesInDrop;
            panic!("planted");
        })
        .expect_err("planted");
        let caught = catch(|| panic!("caught")).expect_err("it panics");
        assert_eq!(caught.location(), None);
        assert_eq!(caught.to_string(), "caught");
        capture_locations();
        let caught = catch(|| panic!("caught")).expect_err("it panics");
        assert!(caught.location().is_some());
    }
}
