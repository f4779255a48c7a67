//! What Linux says about this process; unknown on other systems.

/// The most memory of this process so far, in bytes.
pub(crate) fn peak() -> Option<f64> {
    kilobytes("VmHWM:")
}

/// The memory of this process, in bytes.
pub(crate) fn resident() -> Option<f64> {
    kilobytes("VmRSS:")
}

/// The number of threads of this process.
pub(crate) fn threads() -> Option<u32> {
    status("Threads:")
}

fn kilobytes(name: &str) -> Option<f64> {
    Some(f64::from(status(name)?) * 1024.0)
}

/// A number in the status file of this process.
fn status(name: &str) -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}
