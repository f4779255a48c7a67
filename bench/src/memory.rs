//! What Linux says about processes; unknown on other systems.

const SELF: &str = "self";
const PEAK: &str = "VmHWM:";
const RESIDENT: &str = "VmRSS:";

/// The most memory of this process so far, in bytes.
pub(crate) fn peak() -> Option<f64> {
    kilobytes(SELF, PEAK)
}

/// The most memory of another process so far, in bytes; `None` once it has ended.
pub(crate) fn peak_of(process: u32) -> Option<f64> {
    kilobytes(&process.to_string(), PEAK)
}

/// The memory of this process, in bytes.
pub(crate) fn resident() -> Option<f64> {
    kilobytes(SELF, RESIDENT)
}

/// The memory of another process, in bytes.
pub(crate) fn resident_of(process: u32) -> Option<f64> {
    kilobytes(&process.to_string(), RESIDENT)
}

/// The number of threads of this process.
pub(crate) fn threads() -> Option<u32> {
    status(SELF, "Threads:")
}

fn kilobytes(process: &str, name: &str) -> Option<f64> {
    Some(f64::from(status(process, name)?) * 1024.0)
}

/// A number in the status file of a process.
fn status(process: &str, name: &str) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}
