//! The boot clock of Linux, which all processes of a machine share.

use std::fs;
use std::sync::LazyLock;
use std::time::Duration;

use queue_core::clock::BootTime;
use rustix::time::{ClockId, clock_gettime};

/// Reads the boot clock. Returns `None` if the kernel does not tell which boot this is.
pub(super) fn read() -> Option<BootTime> {
    static BOOT: LazyLock<Option<Boot>> = LazyLock::new(Boot::read);
    let boot = BOOT.as_ref()?;
    let reading = clock_gettime(ClockId::Boottime);
    let nanos = i128::from(reading.tv_sec) * 1_000_000_000 + i128::from(reading.tv_nsec);
    let nanos = u64::try_from(nanos - boot.namespace_offset).ok()?;
    Some(BootTime {
        boot: boot.id,
        elapsed: Duration::from_nanos(nanos),
    })
}

/// What is the same for the whole life of a process.
#[derive(Debug, PartialEq)]
struct Boot {
    id: u128,
    /// By how much the clock of this process's time namespace is ahead of the machine's, in nanoseconds.
    namespace_offset: i128,
}

impl Boot {
    fn read() -> Option<Self> {
        let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        // Kernels without time namespaces do not have this file.
        let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
        Self::parse(&id, &offsets)
    }

    fn parse(id: &str, offsets: &str) -> Option<Self> {
        let id = u128::from_str_radix(&id.trim().replace('-', ""), 16).ok()?;
        let namespace_offset = match offsets
            .lines()
            .find_map(|line| line.strip_prefix("boottime"))
        {
            None => 0,
            Some(numbers) => {
                let mut numbers = numbers.split_whitespace().map(str::parse::<i128>);
                numbers.next()?.ok()? * 1_000_000_000 + numbers.next()?.ok()?
            }
        };
        Some(Self {
            id,
            namespace_offset,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "00000000-0000-0000-0000-0000000000ff\n";

    #[test]
    fn the_offset_of_a_time_namespace_is_known() {
        let offsets = "monotonic           1         2\nboottime       86400       500\n";
        let boot = Boot::parse(ID, offsets).expect("valid");
        assert_eq!(boot.id, 255);
        assert_eq!(boot.namespace_offset, 86_400_000_000_500);
        let behind = "monotonic  0  0\nboottime  -7  0\n";
        let boot = Boot::parse(ID, behind).expect("valid");
        assert_eq!(boot.namespace_offset, -7_000_000_000);
        assert_eq!(Boot::parse(ID, "").expect("valid").namespace_offset, 0);
    }

    #[test]
    fn an_unknown_boot_is_no_boot() {
        assert_eq!(Boot::parse("", ""), None);
        assert_eq!(Boot::parse(ID, "boottime soon"), None);
    }

    #[test]
    fn readings_of_a_process_are_of_one_boot_and_in_order() {
        let (first, second) = (read().expect("Linux"), read().expect("Linux"));
        assert_eq!(first.boot, second.boot);
        assert!(first.elapsed <= second.elapsed);
    }
}
