//! What admitted messages of one type wait for: that few enough of them are handled, and the rate of their handlers.

use std::sync::Arc;

use futures_util::FutureExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::capacity::RateLimit;
use crate::context::Context;
use crate::policy::Rate;
use crate::receive::{ParkingRoom, Refusal, Settling, park};

/// The limits of one type of message.
#[derive(Default)]
pub(crate) struct Gate {
    places: Option<Arc<Semaphore>>,
    rate: Option<RateLimit>,
}

impl Gate {
    pub(crate) fn new(
        context: &Context,
        max_in_flight: Option<usize>,
        rate: Option<&Rate>,
    ) -> Self {
        Self {
            places: max_in_flight.map(|most| Arc::new(Semaphore::new(most))),
            rate: rate.map(|rate| RateLimit::new(rate, &context.clock)),
        }
    }

    pub(super) fn has_limits(&self) -> bool {
        self.places.is_some() || self.rate.is_some()
    }

    /// Waits until a message may be handled, in the parking room. Returns its place among the messages of its type that are
    /// handled, if their number is limited.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn pass(
        &self,
        parking: &Arc<ParkingRoom>,
        settling: Settling<'_>,
    ) -> Result<Option<OwnedSemaphorePermit>, Refusal> {
        let mut passed = std::pin::pin!(self.wait());
        if let Some(at_once) = passed.as_mut().now_or_never() {
            return Ok(at_once);
        }
        park(parking, settling, passed).await
    }

    /// Waits for a place first, so that no token is taken for a message that waits for one.
    async fn wait(&self) -> Option<OwnedSemaphorePermit> {
        let place = match &self.places {
            Some(places) => {
                let place = Arc::clone(places).acquire_owned().await;
                Some(place.expect("the semaphore is never closed"))
            }
            None => None,
        };
        if let Some(rate) = &self.rate {
            rate.start().await;
        }
        place
    }
}
