//! The error of commands that have waited for the write lock in vain.

use std::time::Duration;

use queue_core::RetryAdvice;

use crate::command::{Change, Command};
use crate::failure::{Failure, Holder};
use crate::file::files::Files;

/// Answers commands that have waited for the write lock in vain. A put is not to be repeated while one transaction of
/// this process keeps the lock: that may be the caller's, which goes on only after the put.
pub(super) fn fail(commands: Vec<Command>, files: &Files, waited: Duration) {
    if commands.is_empty() {
        return;
    }
    let holder = Holder::of(files.path());
    let is_one = holder == Holder::ThisProcess && files.is_log_unchanged_for(waited);
    for command in commands {
        let change = Change::of(&command.request);
        let retry = if is_one && change.puts > 0 && change.removals == 0 {
            RetryAdvice::Permanent
        } else {
            RetryAdvice::Temporary
        };
        command.fail(&Failure::Locked {
            waited,
            holder,
            retry,
        });
    }
}
