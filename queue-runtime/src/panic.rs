//! Catching panics of the application's code, with what is known of them.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::{Arc, Once};

/// A panic of a handler or a callback, caught.
///
/// `Display` is the message and the location: `out of cheese (at src/main.rs:12:9)`.
#[derive(Debug, Clone)]
pub struct CaughtPanic {
    message: Arc<str>,
    site: Site,
}

/// What only the panic hook knows.
#[derive(Debug, Clone, Default)]
struct Site {
    location: Option<Arc<str>>,
    backtrace: Option<Arc<Backtrace>>,
}

thread_local! {
    /// Whether this thread runs code of the application's whose panic is caught.
    static CATCHING: Cell<bool> = const { Cell::new(false) };
    static LATEST: RefCell<Option<Site>> = const { RefCell::new(None) };
}

impl CaughtPanic {
    /// The panic message, or a remark if the panic carried a value that is not text.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The source location, as `file:line:column`. `None` if the application has installed a panic hook
    /// of its own since that does not call the one before it.
    #[must_use]
    pub fn location(&self) -> Option<&str> {
        self.site.location.as_deref()
    }

    /// The backtrace, where `RUST_BACKTRACE` or `RUST_LIB_BACKTRACE` enables it.
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

/// Runs the application's code and catches its panic.
pub(crate) fn catch<T>(code: impl FnOnce() -> T) -> Result<T, CaughtPanic> {
    chain_hook();
    let outer = CATCHING.replace(true);
    LATEST.set(None);
    let caught = catch_unwind(AssertUnwindSafe(code));
    CATCHING.set(outer);
    caught.map_err(|payload| {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        CaughtPanic {
            message: text.unwrap_or("with a value that is not text").into(),
            site: LATEST.take().unwrap_or_default(),
        }
    })
}

/// Puts a hook before the one that is installed, once in the life of the process. It notes where a panic
/// happened, which `catch_unwind` does not tell, and calls the other.
fn chain_hook() {
    static CHAINED: Once = Once::new();
    CHAINED.call_once(|| {
        let next = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if CATCHING.get() {
                LATEST.set(Some(Site::of(info)));
            }
            next(info);
        }));
    });
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_panic_keeps_its_message_and_location() {
        let line = line!() + 1;
        let caught = catch(|| panic!("out of {}", "cheese")).expect_err("it panics");
        assert_eq!(caught.message(), "out of cheese");
        let location = caught.location().expect("the hook is chained");
        let here = format!("{}:{line}:", file!());
        assert!(location.starts_with(&here), "{location} is not {here}");
        assert_eq!(caught.to_string(), format!("out of cheese (at {location})"));
        let enabled = Backtrace::capture().status() == BacktraceStatus::Captured;
        assert_eq!(caught.backtrace().is_some(), enabled);
    }

    #[test]
    fn a_panic_with_another_value_is_caught_too() {
        let caught = catch(|| std::panic::panic_any(7)).expect_err("it panics");
        assert_eq!(caught.message(), "with a value that is not text");
        assert!(caught.location().is_some());
    }

    #[test]
    fn the_hook_of_the_application_still_runs_for_every_panic() {
        static CALLS: AtomicUsize = AtomicUsize::new(0);

        catch(|| ()).expect("no panic");
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
}
