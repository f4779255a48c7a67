use std::future::Future;

use crate::Outcome;

/// Measures a workload of `messages`.
pub(crate) struct Meter<'a> {
    pub(crate) messages: u32,
    /// The work of the server so far, if it runs in this process.
    pub(crate) server: &'a dyn Fn() -> Served,
}

/// The work of a server.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Served {
    pub(crate) requests: u64,
    /// Seconds of processor time.
    pub(crate) time: f64,
}

pub(crate) struct Measured {
    /// Messages per second.
    pub(crate) rate: f64,
    /// Microseconds of the client's processor time per message.
    pub(crate) time: f64,
    /// Requests per message.
    pub(crate) requests: f64,
}

impl Meter<'_> {
    /// Measures `work`, which returns its rate.
    pub(crate) async fn measure(
        &self,
        work: impl Future<Output = Outcome<f64>>,
    ) -> Outcome<Measured> {
        let (time, before) = (process_time(), (self.server)());
        let rate = work.await?;
        let (time, after) = (process_time() - time, (self.server)());
        let messages = f64::from(self.messages);
        Ok(Measured {
            rate,
            time: (time - (after.time - before.time)) * 1e6 / messages,
            requests: (after.requests - before.requests) as f64 / messages,
        })
    }
}

/// The processor time of this process so far, in seconds.
#[cfg(unix)]
pub(crate) fn process_time() -> f64 {
    seconds(rustix::time::ClockId::ProcessCPUTime)
}

/// The processor time of this thread so far, in seconds.
#[cfg(unix)]
pub(crate) fn thread_time() -> f64 {
    seconds(rustix::time::ClockId::ThreadCPUTime)
}

#[cfg(unix)]
fn seconds(clock: rustix::time::ClockId) -> f64 {
    let time = rustix::time::clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Unknown on other systems.
#[cfg(not(unix))]
pub(crate) fn process_time() -> f64 {
    f64::NAN
}

#[cfg(not(unix))]
pub(crate) fn thread_time() -> f64 {
    f64::NAN
}
