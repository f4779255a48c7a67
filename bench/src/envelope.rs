//! The envelope: encoding and decoding an event, and plain `serde_json` of the same struct.

use std::hint::black_box;
use std::time::Instant;

use queue_instructions::{Parcel, through_envelope};

use crate::report::{Table, Whose};
use crate::{Options, Outcome};

const OURS: &str = "ours";
const PLAIN: &str = "serde_json";

const MESSAGES: u32 = 100_000;
/// Alternations within a round, so that both sides share what else happens on the machine.
const TURNS: u32 = 10;

pub(crate) fn measure(options: &Options) -> Outcome<Vec<Table>> {
    let sides = [OURS, PLAIN];
    let mut table = Table::new("envelope", "The envelope, encoded and decoded", &sides)
        .costs("microseconds per message", 2);
    let messages = options.messages(MESSAGES, TURNS) / TURNS;
    for round in options.rounds() {
        let (mut ours, mut plain) = (0.0, 0.0);
        for turn in 0..TURNS {
            for whose in Whose::in_turn(round + turn) {
                match whose {
                    Whose::Ours => ours += seconds(messages, through_envelope)?,
                    Whose::Bare => plain += seconds(messages, json)?,
                }
            }
        }
        let per_message = 1e6 / f64::from(messages * TURNS);
        table.add("encode + decode", 1, OURS, ours * per_message);
        table.add("encode + decode", 1, PLAIN, plain * per_message);
    }
    Ok(vec![table])
}

fn seconds(messages: u32, work: impl Fn(&Parcel) -> Outcome<Parcel>) -> Outcome<f64> {
    let parcel = Parcel::new(messages);
    let started = Instant::now();
    for _ in 0..messages {
        black_box(work(black_box(&parcel))?);
    }
    Ok(started.elapsed().as_secs_f64())
}

fn json(parcel: &Parcel) -> Outcome<Parcel> {
    let json = serde_json::to_string(parcel)?;
    Ok(serde_json::from_str(&json)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_return_what_they_were_given() {
        for work in [through_envelope, json] {
            assert_eq!(work(&Parcel::new(7)).expect("valid").number, 7);
        }
    }
}
