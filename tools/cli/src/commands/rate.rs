use std::str::FromStr;

use clap::Args;
use queue_runtime::policy::{InvalidRate, Rate};
use serde_json::json;

use crate::failure::Result;
use crate::session::Session;

/// Show or set the rate at which the listeners of all processes together receive messages of a queue. Not on Azure.
///
/// The rate is recorded in the queue's metadata. Listeners obey within 5 seconds. `receive` and programs without this
/// library are not limited.
#[derive(Debug, Args)]
pub(crate) struct RateOf {
    queue: String,

    /// The rate to set: a count and a time, such as `100/1m`, and if wished how many may be received at once after a pause,
    /// such as `100/1m burst 20`; or `none`.
    rate: Option<NewRate>,
}

#[derive(Debug, Clone, Copy)]
struct NewRate(Option<Rate>);

impl FromStr for NewRate {
    type Err = InvalidRate;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "none" => Ok(Self(None)),
            _ => text.parse().map(|rate| Self(Some(rate))),
        }
    }
}

pub(crate) async fn run(of: &RateOf, session: &Session) -> Result<()> {
    let queue = session.queue(&of.queue)?;
    let output = &session.output;
    let text = |rate: Option<Rate>| rate.map(|rate| rate.to_string());
    let shown = |rate: Option<Rate>| text(rate).unwrap_or_else(|| "none".to_owned());
    match of.rate {
        Some(NewRate(rate)) => {
            let before = queue.set_rate(rate).await?;
            let sentence = format!("rate: {} (was: {})", shown(rate), shown(before));
            let set = json!({ "rate": text(rate), "before": text(before) });
            output.done(&sentence, &set)
        }
        None => {
            let rate = queue.rate().await?;
            output.done(
                &format!("rate: {}", shown(rate)),
                &json!({ "rate": text(rate) }),
            )
        }
    }
}
