use queue_core::backend::Capabilities;
use tokio::sync::Semaphore;

use super::bytes::ByteLimit;
use crate::kernel::policy::TaskRange;
use crate::kernel::settings::{ConsumerConfig, InvalidSetting};

/// How much a listener receives and handles at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) tasks: TaskRange,
    pub(crate) max_in_flight: usize,
    /// The number of messages that the handler gets at a time.
    handled: usize,
    pub(crate) max_bytes: Option<usize>,
    /// The maximum number of messages per receive.
    pub(crate) batch: Option<usize>,
}

/// More dequeue tasks are a mistake: each receives as many messages at a time as the backend allows.
const MAX_TASKS: usize = 1024;

impl Bounds {
    /// `handled` is the number of messages that the handler gets at a time, if it is not one.
    pub(crate) fn of(config: &ConsumerConfig, handled: Option<usize>) -> Self {
        // So that a batch is collected while another one is handled.
        let default = handled
            .map_or(0, |messages| messages.saturating_mul(2))
            .max(32);
        Self {
            handled: handled.unwrap_or(1),
            tasks: config.tasks.unwrap_or_else(default_tasks),
            max_in_flight: config.max_in_flight.unwrap_or(default),
            max_bytes: config.max_bytes_in_flight,
            batch: config.batch,
        }
    }

    pub(crate) fn check(&self, capabilities: &Capabilities) -> Result<(), InvalidSetting> {
        check_tasks(self.tasks)?;
        let (in_flight, most) = (self.max_in_flight, Semaphore::MAX_PERMITS);
        InvalidSetting::within(
            "number of messages in flight",
            in_flight,
            self.handled,
            most,
        )?;
        if let Some(batch) = self.batch {
            InvalidSetting::count("number of messages per receive", batch, usize::MAX)?;
        }
        match self.max_bytes {
            Some(bytes) => {
                let least = capabilities.max_body;
                InvalidSetting::within("number of bytes in flight", bytes, least, most)
            }
            None => Ok(()),
        }
    }

    /// Returns the maximum number of messages per receive.
    pub(crate) fn batch(&self, capabilities: &Capabilities) -> u32 {
        let most = self.max_in_flight.min(self.batch.unwrap_or(usize::MAX));
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        most.min(capabilities.max_receive)
    }

    pub(super) fn byte_limit(&self, capabilities: &Capabilities) -> Option<ByteLimit> {
        let limit = |bytes| ByteLimit::new(bytes, capabilities.max_body);
        self.max_bytes.map(limit)
    }
}

/// One dequeue task, and up to one for each processor while there is work, but at least two and at most 16.
fn default_tasks() -> TaskRange {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    (1..=processors.clamp(2, 16)).into()
}

/// Checks the number of dequeue tasks.
pub(crate) fn check_tasks(tasks: TaskRange) -> Result<TaskRange, InvalidSetting> {
    if tasks.min == tasks.max {
        InvalidSetting::count("number of tasks", tasks.max, MAX_TASKS)?;
    } else {
        InvalidSetting::within("minimum number of tasks", tasks.min, 0, MAX_TASKS)?;
        let least = tasks.least();
        InvalidSetting::within("maximum number of tasks", tasks.max, least, MAX_TASKS)?;
    }
    Ok(tasks)
}
