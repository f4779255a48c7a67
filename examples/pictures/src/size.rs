//! Sizes for people.

use std::fmt;

/// A number of bytes, shown in MiB from 1 MiB on.
///
/// ```
/// use pictures::Size;
///
/// assert_eq!(Size(512 << 20).to_string(), "512 MiB");
/// assert_eq!(Size(3 << 19).to_string(), "1.5 MiB");
/// assert_eq!(Size(14_399).to_string(), "14399 bytes");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MIB: u64 = 1 << 20;
        match self.0 {
            bytes if bytes < MIB => write!(f, "{bytes} bytes"),
            bytes if bytes.is_multiple_of(MIB) => write!(f, "{} MiB", bytes / MIB),
            bytes => write!(f, "{:.1} MiB", bytes as f64 / MIB as f64),
        }
    }
}
