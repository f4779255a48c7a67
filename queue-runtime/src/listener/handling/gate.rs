//! What admitted messages of one type wait for: that few enough of them are handled, and the rate of their handlers.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use queue_core::Failure;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::capacity::RateLimit;
use crate::context::Context;
use crate::policy::Rate;
use crate::receive::{End, ParkingRoom, Readiness, Ready, Refusal, Settling, park};

/// How long a message is hidden if what is around its handler fails to become ready.
const NOT_READY: Duration = Duration::from_secs(10);

/// The limits of one type of message.
#[derive(Default)]
pub(crate) struct Gate {
    places: Option<Arc<Semaphore>>,
    rate: Option<RateLimit>,
    ready: Readiness,
}

/// What a message got that passed.
#[derive(Default)]
pub(super) struct Passed {
    /// Its place among the messages of its type that are handled, if their number is limited.
    pub(super) place: Option<OwnedSemaphorePermit>,
    /// Of what is around the handler of its type, or is the handler.
    pub(super) ready: Ready,
}

impl Gate {
    pub(crate) fn new(
        context: &Context,
        max_in_flight: Option<usize>,
        rate: Option<&Rate>,
        ready: Readiness,
    ) -> Self {
        Self {
            places: max_in_flight.map(|most| Arc::new(Semaphore::new(most))),
            rate: rate.map(|rate| RateLimit::new(rate, &context.clock)),
            ready,
        }
    }

    pub(super) fn has_limits(&self) -> bool {
        self.places.is_some() || self.rate.is_some() || self.ready.is_needed()
    }

    /// Waits until a message may be handled, in the parking room.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn pass(
        &self,
        parking: &Arc<ParkingRoom>,
        settling: Settling<'_>,
    ) -> Result<Passed, Refusal> {
        let mut passed = std::pin::pin!(self.wait());
        let passed = match passed.as_mut().now_or_never() {
            Some(at_once) => at_once,
            None => park(parking, settling, passed).await?,
        };
        passed.map_err(|failure| {
            let error = format!("what is around its handler is not ready: {failure}");
            Refusal::Ends(End::Postponed {
                after: NOT_READY,
                reason: Some(error),
            })
        })
    }

    /// Waits for a place first, so that no token is taken for a message that waits for one.
    async fn wait(&self) -> Result<Passed, Failure> {
        let place = match &self.places {
            Some(places) => {
                let place = Arc::clone(places).acquire_owned().await;
                Some(place.expect("the semaphore is never closed"))
            }
            None => None,
        };
        let ready = self.ready.wait().await?;
        if let Some(rate) = &self.rate {
            rate.start().await;
        }
        Ok(Passed { place, ready })
    }
}
