//! What is counted, and how, for the program of this package and the benchmarks.

use std::error::Error;
use std::process::Command;

use bytes::Bytes;
use queue_core::encoder::Encoded;
use queue_runtime::envelope::ClientId;
use queue_runtime::wire::Body;
use queue_runtime::{Message, MessageId, RequestId, Timestamp};
use serde::{Deserialize, Serialize};

/// A result of which only the text of an error matters.
pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// A message of about 200 bytes of JSON.
#[derive(Debug, Clone, Serialize, Deserialize, Message)]
#[message(kind = "bench.parcel", queue = "parcel")]
pub struct Parcel {
    /// What tells the parcel from others.
    pub number: u32,
    recipient: String,
    street: String,
    note: String,
}

impl Parcel {
    /// Returns the message of this number.
    #[must_use]
    pub fn new(number: u32) -> Self {
        Self {
            number,
            recipient: "Ada Lovelace, Analytical Engines Ltd".to_owned(),
            street: "12 St James's Square, London".to_owned(),
            note: "Handle with care: gears inside. Leave with the porter if nobody answers."
                .to_owned(),
        }
    }
}

/// Encodes the message as an event, and decodes it.
///
/// # Errors
/// None, unless the envelope is broken.
pub fn through_envelope(parcel: &Parcel) -> Outcome<Parcel> {
    let encoded = Encoded::of(parcel)?;
    let mut envelope = encoded.envelope(
        MessageId::new("0198c4f2-7d4b-7cc1-9f5e-3a1b2c4d5e6f")?,
        ClientId::new("warehouse-7/4711")?,
        RequestId::new("0198c4f2-7d4b-7cc1-9f5e-6f5e4d3c2b1a")?,
    );
    envelope.time = Some(Timestamp::UNIX_EPOCH);
    envelope.queue_uri = Some("https://parcels.queue.core.windows.net/parcel".to_owned());
    let body = Bytes::from(encoded.body(&envelope));
    Ok(Body::read(&body, body.len()).decode()?)
}

/// Runs this program again, below valgrind and with these arguments, and returns how many instructions it executed.
///
/// # Errors
/// What valgrind or the program printed, if one failed.
pub fn instructions(arguments: &[&str]) -> Outcome<u64> {
    let output = Command::new("valgrind")
        .args([
            "--tool=cachegrind",
            "--cache-sim=no",
            "--cachegrind-out-file=/dev/null",
        ])
        .arg(std::env::current_exe()?)
        .args(arguments)
        .output()?;
    let report = String::from_utf8_lossy(&output.stderr);
    match total(&report) {
        Some(instructions) if output.status.success() => Ok(instructions),
        _ => Err(format!("valgrind ended with {}:\n{report}", output.status).into()),
    }
}

/// Reads the total from a report such as `==7== I   refs:      1,234,567`.
fn total(report: &str) -> Option<u64> {
    let line = report.lines().find(|line| line.contains("refs:"))?;
    let (_, number) = line.split_once("refs:")?;
    number.trim().replace(',', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_found_in_the_report() {
        let report = "==7== Cachegrind\n==7== \n==7== I   refs:      1,234,567\n";
        assert_eq!(total(report), Some(1_234_567));
        assert_eq!(total("==7== killed"), None);
    }

    #[test]
    fn what_went_through_an_envelope_is_the_same() {
        assert_eq!(through_envelope(&Parcel::new(7)).expect("valid").number, 7);
    }
}
