use std::future::Future;

use crate::Outcome;

/// Measures what some work with so many messages takes.
pub(crate) struct Meter<'a> {
    pub(crate) messages: u32,
    /// How many requests there were so far.
    pub(crate) requests: &'a dyn Fn() -> u64,
}

pub(crate) struct Measured {
    /// Messages per second.
    pub(crate) rate: f64,
    /// Microseconds of processor time per message, of the whole process.
    pub(crate) time: f64,
    /// Requests per message.
    pub(crate) requests: f64,
}

impl Meter<'_> {
    /// The work gives its rate.
    pub(crate) async fn measure(
        &self,
        work: impl Future<Output = Outcome<f64>>,
    ) -> Outcome<Measured> {
        let (time, requests) = (processor_time(), (self.requests)());
        let rate = work.await?;
        let messages = f64::from(self.messages);
        Ok(Measured {
            rate,
            time: (processor_time() - time) * 1e6 / messages,
            requests: ((self.requests)() - requests) as f64 / messages,
        })
    }
}

/// How many seconds the threads of this process ran so far, all of them together.
#[cfg(unix)]
fn processor_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// No figure: the system is not asked.
#[cfg(not(unix))]
fn processor_time() -> f64 {
    f64::NAN
}
