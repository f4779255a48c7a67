//! Copies what is readable of a damaged SQLite file to a new one.
//!
//! ```sh
//! cargo run -p storage-queues --example salvage -- DAMAGED NEW
//! ```

use std::process::ExitCode;

use queue_runtime::sqlite;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(from), Some(to), None) = (arguments.next(), arguments.next(), arguments.next())
    else {
        eprintln!("usage: salvage DAMAGED NEW");
        return ExitCode::FAILURE;
    };
    match sqlite::salvage(from, to) {
        Ok(salvaged) => {
            println!(
                "copied {} messages in {} queues; {} of them are visible at once, because their visibility \
                 could not be read; {} more could not be read",
                salvaged.messages, salvaged.queues, salvaged.rescheduled, salvaged.lost
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
