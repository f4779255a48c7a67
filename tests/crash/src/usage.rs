//! What a process uses of the system, as Linux counts it.

use std::fmt;
use std::fs;

use tokio::runtime::Handle;

/// What the line that reports a [`Usage`] begins with.
pub const USED: &str = "used";

/// What a process uses, or has used so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes read with system calls, also from the system's cache.
    pub read: u64,
    /// The memory, in KiB.
    pub memory: u64,
    /// The most memory so far, in KiB.
    pub peak: u64,
    /// Open files and sockets.
    pub descriptors: u64,
    /// The threads.
    pub threads: u64,
    /// The tasks of the runtime.
    pub tasks: u64,
}

impl Usage {
    /// Asks the system about this process.
    ///
    /// # Panics
    /// If the system is not Linux, or the caller on no runtime.
    #[must_use]
    pub fn of_this_process() -> Self {
        let read = |file| fs::read_to_string(file).expect("Linux tells about the process");
        let (io, status) = (read("/proc/self/io"), read("/proc/self/status"));
        let number = |text: &str, name: &str| -> u64 {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let value = line.and_then(|line| line.split_whitespace().next());
            value.expect("it has a value").parse().expect("a number")
        };
        Self {
            read: number(&io, "rchar:"),
            memory: number(&status, "VmRSS:"),
            peak: number(&status, "VmHWM:"),
            descriptors: fs::read_dir("/proc/self/fd").expect("a folder").count() as u64,
            threads: number(&status, "Threads:"),
            tasks: Handle::current().metrics().num_alive_tasks() as u64,
        }
    }

    /// Parses a line that [`USED`] begins.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let mut numbers = line.strip_prefix(USED)?.split_whitespace();
        let mut next = || numbers.nth(1)?.parse().ok();
        Some(Self {
            read: next()?,
            memory: next()?,
            peak: next()?,
            descriptors: next()?,
            threads: next()?,
            tasks: next()?,
        })
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            read,
            memory,
            peak,
            descriptors,
            threads,
            tasks,
        } = self;
        write!(
            f,
            "{USED} read {read} memory {memory} peak {peak} descriptors {descriptors} threads {threads} tasks {tasks}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_parsed() {
        let usage = Usage {
            read: 1,
            memory: 2,
            peak: 3,
            descriptors: 4,
            threads: 5,
            tasks: 6,
        };
        assert_eq!(Usage::parse(&usage.to_string()), Some(usage));
        assert_eq!(Usage::parse("held"), None);
    }
}
