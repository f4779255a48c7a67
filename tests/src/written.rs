use std::io::{Result, Write};
use std::sync::{Arc, Mutex, PoisonError};

/// What was written to any clone, such as the log of a process.
#[derive(Debug, Clone, Default)]
pub struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    /// Returns all that was written.
    #[must_use]
    pub fn text(&self) -> String {
        let written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&written).into_owned()
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        written.write(bytes)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}
