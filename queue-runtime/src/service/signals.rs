//! The signals that ask a process to stop, for all that wait for them in it.
//!
//! A thread of its own hears the signals, so that they have their effect whatever the runtimes of the program do:
//!
//! | a signal comes | it |
//! |---|---|
//! | while no `StopSignals` exists | has its default action |
//! | first | is told |
//! | second, after the first signal was noticed | is told, and the process has [`LAST`] to end |
//! | second, within [`NOTICE`] of a first signal not noticed yet | is kept, and told as soon as the first is noticed; has its default action if the first is not noticed within [`NOTICE`] |
//! | second, later, after a first signal not noticed | has its default action |
//! | after the second | changes nothing |

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use queue_core::internal::LockExt as _;
use tokio::runtime::Builder;
use tokio::sync::{Notify, watch};

/// The time in which a program that waits for signals notices one, unless its handlers block it.
const NOTICE: Duration = Duration::from_secs(2);

/// The time that a process has to end after the second signal: handing messages back takes up to 10 seconds.
const LAST: Duration = Duration::from_secs(11);

/// The time in which a terminal that is closed sends SIGHUP twice, by the shell and by the kernel.
const CLOSING: Duration = Duration::from_millis(500);

/// What those that wait are told; `None` until the first [`StopSignals`] exists.
static TOLD: Mutex<Option<watch::Sender<Told>>> = Mutex::new(None);

/// How many signals were noticed, of those that were told.
static NOTICED: AtomicU64 = AtomicU64::new(0);

/// Wakes the thread that hears the signals when [`NOTICED`] has changed.
static NOW_NOTICED: Notify = Notify::const_new();

/// The signals that ask a process to stop: SIGTERM, SIGINT, SIGHUP, SIGQUIT, and SIGPWR on Linux; on Windows, the console's
/// Ctrl-C, Ctrl-Break, close, logoff and shutdown. Requires the feature `signal`.
///
/// While a `StopSignals` exists, the first signal does not end the process. The second signal ends the process: after
/// 11 seconds at the latest, and after 2 seconds if [`next`](Self::next) has not returned the signals. Once the last
/// `StopSignals` is dropped, each signal has its default action again. A signal that the process was started to ignore,
/// as `nohup` has it ignore SIGHUP, stays ignored, which is known on Linux only.
///
/// [`QueueService::shutdown_on_signal`](crate::QueueService::shutdown_on_signal) is usually enough. `StopSignals` is
/// for programs that stop other work as well.
///
/// ```no_run
/// use std::time::Duration;
/// use queue_runtime::QueueService;
/// use queue_runtime::service::StopSignals;
///
/// # async fn import() {}
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut signals = StopSignals::new()?;
/// let service = QueueService::connect("memory:").await?;
/// tokio::select! {
///     () = import() => println!("imported"),
///     signal = signals.next() => println!("stopped by {signal}"),
/// }
/// service.shutdown(Duration::from_secs(30)).await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct StopSignals {
    told: watch::Receiver<Told>,
}

/// A signal that asks a process to stop. The text of a signal is its name, such as `SIGTERM`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopSignal {
    name: &'static str,
    number: u8,
}

/// The signals of this process that were told.
#[derive(Debug, Clone, Copy, Default)]
struct Told {
    count: u64,
    last: Option<(StopSignal, Instant)>,
    /// The second signal, which is not told before the first is noticed.
    kept: Option<(StopSignal, Instant)>,
}

/// What becomes of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Tell,
    Keep,
    Nothing,
    Default,
}

impl StopSignals {
    /// Starts to listen to signals. A signal that comes before `new` has its default action, so call `new` before the
    /// first listener starts.
    ///
    /// # Errors
    /// The system's error, if it does not allow the process to handle the signals.
    pub fn new() -> io::Result<Self> {
        let mut told = TOLD.hold();
        let sender = match &*told {
            Some(sender) => sender,
            None => told.insert(start()?),
        };
        if sender.receiver_count() == 0 {
            NOTICED.store(0, Ordering::SeqCst);
            sender.send_replace(Told::default());
        }
        let told = sender.subscribe();
        Ok(Self { told })
    }

    /// Waits for the next signal after the last signal that `next` returned. Signals that arrive at the same time may
    /// count as one.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn next(&mut self) -> StopSignal {
        loop {
            // The sender is never dropped.
            let _ = self.told.changed().await;
            let told = *self.told.borrow_and_update();
            if let Some((signal, _)) = told.last {
                NOTICED.fetch_max(told.count, Ordering::SeqCst);
                NOW_NOTICED.notify_one();
                return signal;
            }
        }
    }
}

impl StopSignal {
    /// The exit code by which shells tell that a signal has ended a process: 128 plus the signal's number.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        self.number.saturating_add(128)
    }
}

impl fmt::Display for StopSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Told {
    /// What becomes of a further signal, if so many were noticed, and somebody waits for signals.
    fn effect(&self, signal: StopSignal, noticed: u64, awaited: bool, now: Instant) -> Effect {
        if !awaited {
            return Effect::Default;
        }
        let Some((_, at)) = self.last else {
            return Effect::Tell;
        };
        let since = now.saturating_duration_since(at);
        if self.count > 1 || (signal.name == "SIGHUP" && since < CLOSING) {
            Effect::Nothing
        } else if noticed >= self.count {
            Effect::Tell
        } else if since < NOTICE {
            Effect::Keep
        } else {
            Effect::Default
        }
    }

    /// What was told after a further signal, which came at that time.
    fn and(&self, signal: StopSignal, at: Instant) -> Self {
        Self {
            count: self.count + 1,
            last: Some((signal, at)),
            kept: None,
        }
    }

    /// The kept signal, if it is to be told now.
    fn due(&self, noticed: u64) -> Option<(StopSignal, Instant)> {
        self.kept.filter(|_| noticed >= self.count)
    }

    /// When the process is ended to which a second signal came, and by which signal.
    fn ends_at(&self, noticed: u64) -> Option<(StopSignal, Instant)> {
        let (last, at) = self.last?;
        let is_noticed = noticed >= self.count;
        match self.kept {
            Some((second, _)) if !is_noticed => Some((second, at + NOTICE)),
            _ if self.count < 2 => None,
            _ if is_noticed => Some((last, at + LAST)),
            _ => Some((last, at + NOTICE)),
        }
    }
}

/// Starts the thread that hears the signals.
fn start() -> io::Result<watch::Sender<Told>> {
    let sender = watch::Sender::new(Told::default());
    let (started, is_started) = mpsc::channel();
    let told = sender.clone();
    let thread = std::thread::Builder::new().name("queue-signals".to_owned());
    thread.spawn(move || {
        let runtime = match Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return drop(started.send(Err(error))),
        };
        runtime.block_on(async {
            match system::Signals::new() {
                Ok(signals) => {
                    drop(started.send(Ok(())));
                    hear(signals, &told).await;
                }
                Err(error) => drop(started.send(Err(error))),
            }
        });
    })?;
    let started = is_started.recv().map_err(io::Error::other)?;
    started.map(|()| sender)
}

/// Tells the kept signal if it is due. Returns when the process is ended.
fn tell_due(told: &watch::Sender<Told>) -> Option<(StopSignal, Instant)> {
    let _alone = TOLD.hold();
    let noticed = NOTICED.load(Ordering::SeqCst);
    let mut now_told = *told.borrow();
    if let Some((signal, at)) = now_told.due(noticed) {
        now_told = now_told.and(signal, at);
        told.send_replace(now_told);
    }
    now_told.ends_at(noticed)
}

async fn hear(mut signals: system::Signals, told: &watch::Sender<Told>) {
    loop {
        let end = tell_due(told);
        let over = async {
            match end {
                Some((_, at)) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        let signal = tokio::select! {
            signal = signals.next() => signal,
            () = NOW_NOTICED.notified() => continue,
            () = over => {
                // The process has longer if the signal was noticed meanwhile.
                if let Some((signal, _)) = end.filter(|_| tell_due(told) == end) {
                    system::end(signal);
                }
                continue;
            }
        };
        let _alone = TOLD.hold();
        let (before, now) = (*told.borrow(), Instant::now());
        let (noticed, awaited) = (NOTICED.load(Ordering::SeqCst), told.receiver_count() > 0);
        match before.effect(signal, noticed, awaited, now) {
            Effect::Tell => {
                told.send_replace(before.and(signal, now));
            }
            Effect::Keep => {
                // Nobody is woken: the first signal would be told again.
                told.send_if_modified(|told| {
                    told.kept = Some((signal, now));
                    false
                });
            }
            Effect::Nothing => {}
            Effect::Default => system::end(signal),
        }
    }
}

#[cfg(unix)]
mod system {
    use std::task::Poll;

    use tokio::signal::unix::{self, SignalKind};

    use super::*;

    /// The signals that the process was not started to ignore.
    pub(super) struct Signals(Vec<(StopSignal, unix::Signal)>);

    impl Signals {
        pub(super) fn new() -> io::Result<Self> {
            use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

            let ignored = ignored();
            let signals = [
                ("SIGTERM", SIGTERM),
                ("SIGINT", SIGINT),
                ("SIGHUP", SIGHUP),
                ("SIGQUIT", SIGQUIT),
                // Containers of LXC are stopped by SIGPWR.
                #[cfg(target_os = "linux")]
                ("SIGPWR", rustix::process::Signal::POWER.as_raw()),
            ];
            let heard = signals.into_iter().filter_map(|(name, number)| {
                let number = u8::try_from(number).expect("they are below 128");
                let is_ignored = ignored >> (number - 1) & 1 == 1;
                (!is_ignored).then_some(StopSignal { name, number })
            });
            let heard = heard.map(|signal| {
                let kind = SignalKind::from_raw(signal.number.into());
                Ok((signal, unix::signal(kind)?))
            });
            Ok(Self(heard.collect::<io::Result<_>>()?))
        }

        pub(super) async fn next(&mut self) -> StopSignal {
            std::future::poll_fn(|cx| {
                let mut heard = self.0.iter_mut();
                let next = heard
                    .find_map(|(signal, heard)| heard.poll_recv(cx).is_ready().then_some(*signal));
                next.map_or(Poll::Pending, Poll::Ready)
            })
            .await
        }
    }

    /// The signals that are ignored, as bits.
    fn ignored() -> u64 {
        // Other systems have no such file.
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
            .unwrap_or_default()
    }

    /// Ends the process by a signal's default action.
    pub(super) fn end(signal: StopSignal) -> ! {
        // The first process of a container has no default actions.
        if std::process::id() != 1 {
            // The emulation fails for what it does not know, such as SIGPWR.
            let _ = signal_hook::low_level::emulate_default_handler(signal.number.into());
        }
        signal_hook::low_level::exit(signal.exit_code().into())
    }
}

#[cfg(windows)]
mod system {
    use tokio::signal::windows::{
        CtrlBreak, CtrlC, CtrlClose, CtrlLogoff, CtrlShutdown, ctrl_break, ctrl_c, ctrl_close,
        ctrl_logoff, ctrl_shutdown,
    };

    use super::*;

    pub(super) struct Signals(CtrlC, CtrlBreak, CtrlClose, CtrlLogoff, CtrlShutdown);

    impl Signals {
        pub(super) fn new() -> io::Result<Self> {
            Ok(Self(
                ctrl_c()?,
                ctrl_break()?,
                ctrl_close()?,
                ctrl_logoff()?,
                ctrl_shutdown()?,
            ))
        }

        /// The numbers are those of the signals that other systems send for the same reasons.
        pub(super) async fn next(&mut self) -> StopSignal {
            let (name, number) = tokio::select! {
                _ = self.0.recv() => ("Ctrl-C", 2),
                _ = self.1.recv() => ("Ctrl-Break", 3),
                _ = self.2.recv() => ("close", 1),
                _ = self.3.recv() => ("logoff", 15),
                _ = self.4.recv() => ("shutdown", 15),
            };
            StopSignal { name, number }
        }
    }

    /// Ends the process as the console's default handler does.
    pub(super) fn end(_: StopSignal) -> ! {
        const STATUS_CONTROL_C_EXIT: i32 = 0xC000_013A_u32 as i32;
        std::process::exit(STATUS_CONTROL_C_EXIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: StopSignal = StopSignal {
        name: "SIGTERM",
        number: 15,
    };
    const HUP: StopSignal = StopSignal {
        name: "SIGHUP",
        number: 1,
    };

    #[test]
    fn a_signal_is_told_twice_and_has_its_default_action_where_nobody_notices() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        let told = |count| Told {
            count,
            last: (count > 0).then_some((TERM, start)),
            kept: None,
        };
        for (signal, count, noticed, awaited, after, effect) in [
            (TERM, 0, 0, true, 0, Effect::Tell),
            (TERM, 0, 0, false, 0, Effect::Default),
            (TERM, 1, 1, true, 100, Effect::Tell),
            (TERM, 1, 1, false, 100, Effect::Default),
            (TERM, 1, 0, true, 0, Effect::Keep),
            (TERM, 1, 0, true, 1_999, Effect::Keep),
            (TERM, 1, 0, true, 2_000, Effect::Default),
            (TERM, 2, 2, true, 100, Effect::Nothing),
            (TERM, 2, 2, false, 100, Effect::Default),
            (HUP, 0, 0, true, 0, Effect::Tell),
            (HUP, 1, 1, true, 499, Effect::Nothing),
            (HUP, 1, 1, true, 500, Effect::Tell),
            (HUP, 1, 0, true, 499, Effect::Nothing),
            (HUP, 1, 0, true, 500, Effect::Keep),
            (HUP, 1, 0, true, 2_000, Effect::Default),
        ] {
            let found = told(count).effect(signal, noticed, awaited, start + ms(after));
            assert_eq!(
                found, effect,
                "{signal} {count} {noticed} {awaited} {after}"
            );
        }
        for (count, noticed, seconds) in [
            (0, 0, None),
            (1, 1, None),
            (2, 1, Some(2)),
            (2, 2, Some(11)),
        ] {
            let ends = told(count)
                .ends_at(noticed)
                .map(|(_, at)| (at - start).as_secs());
            assert_eq!(ends, seconds, "{count} {noticed}");
        }
    }

    #[test]
    fn a_second_signal_before_the_first_is_noticed_ends_the_process_or_is_told_later() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let first = Told::default().and(TERM, start);
        assert_eq!((first.due(0), first.ends_at(0)), (None, None));
        let came = (HUP, start + second);
        let kept = Told {
            kept: Some(came),
            ..first
        };
        assert_eq!(kept.due(0), None);
        assert_eq!(kept.ends_at(0), Some((HUP, start + NOTICE)));
        assert_eq!(kept.due(1), Some(came));
        let told = kept.and(HUP, start + second);
        assert_eq!((told.count, told.last, told.kept), (2, Some(came), None));
        assert_eq!(told.due(2), None);
        assert_eq!(told.ends_at(1), Some((HUP, start + second + NOTICE)));
        assert_eq!(told.ends_at(2), Some((HUP, start + second + LAST)));
    }
}
