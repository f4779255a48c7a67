//! What a leased message has to have before its handler is called, in this order, and how it waits for each: at a *door*.
//!
//! | door | when | waits in the parking room | gives up meanwhile | is put back after |
//! |---|---|---|---|---|
//! | the turn of its key | before its attempt begins if the key is known then, otherwise once its data is read | always, unless as many wait before it | readiness | the handler's timeout |
//! | the limits of its type: a place, readiness, a token of the rate | with its turn | in one of the bounded places | readiness | a visibility timeout |
//! | an attempt: [`admit`] | then | – | – | – |
//! | room for its data | if the data is elsewhere or compressed | in one of the bounded places | readiness | a visibility timeout |
//! | its data | then | no | – | a visibility timeout of an outage |
//! | a thread | if its handler blocks and it has none | in one of the bounded places | – | a visibility timeout |
//! | the claim of its idempotency key | once it is decoded | no | – | a visibility timeout of an outage, or the other claim |
//!
//! At each door the message is kept leased, and put back in its place if the listener stops. What is put back counts no
//! attempt. `accept` knows the doors that need no listener: an attempt, the data, and the claim, of which it gets the error.
//! A pause of the queue is no door: it hands messages back.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use queue_core::envelope::PoisonReason;
use queue_core::{Error, RetryAdvice};

use super::routes::TypedRoute;
use super::routes::until_ready;
use crate::extensions::flow::keys::Keyed;
use crate::kernel::listener::capacity::{Capacity, Reserved, Room};
use crate::kernel::listener::core::Core;
use crate::kernel::listener::event::ListenerEventKind;
use crate::kernel::listener::phase::ListenerPhase;
use crate::kernel::panic::CaughtPanic;
use crate::kernel::policy::{jitter, outage_pause};
use crate::kernel::receive::{
    Call, Consumer, End, Incoming, Parked, ParkingRoom, Ready, Refusal, Settling, admit,
    can_decode_early, can_wait_outside, claim, decode, expanded_size, fetch_data, is_admissible,
    lacks_data, park, put_back_after,
};

/// Returns the call that handles the message, once it has what that needs.
pub(super) async fn prepare(
    room: &Room,
    route: &TypedRoute,
    incoming: &mut Incoming,
) -> Result<Call, Refusal> {
    let core = room.core();
    let (context, consumer) = (&core.context, &route.consumer);
    let Some(handler) = &route.handler else {
        return Err(unhandled(incoming));
    };
    let keyed = route.gate.keyed();
    // What is not handled waits for nothing.
    let waits =
        (keyed.is_some() || route.gate.has_limits()) && is_admissible(context, consumer, incoming);
    // A message waits before its attempt begins, unless its key is not known by then.
    let waits_early = waits && (keyed.is_none() || room.has_turn());
    let mut own = Ready::default();
    if waits_early {
        own = Box::pin(wait(room, route, incoming)).await?;
    }
    admit(context, consumer, incoming).await?;
    if lacks_data(consumer, incoming) {
        Box::pin(obtain_data(room, consumer, incoming)).await?;
    }
    if let Some(keyed) = keyed.filter(|_| waits && !waits_early) {
        take_turn(room, keyed, incoming).map_err(|panic| {
            let error = format!("the function that returns the key of a message panicked: {panic}");
            Refusal::Ends(End::failed(error))
        })?;
        let marked = incoming.envelope.attempts.last_chance;
        let has_to_wait = room.turn().is_some_and(|(before, _)| before > 0);
        let after = put_back_after(&incoming.envelope);
        let settling = Settling::new(context, consumer, incoming);
        if marked && has_to_wait && can_wait_outside(settling, after) {
            // Put back without its mark: whatever ends the process meanwhile is not the message's doing.
            let reason =
                Some("the message has to wait for its turn, and is on its last chance".to_owned());
            return Err(Refusal::Ends(End::Postponed { after, reason }));
        }
        own = Box::pin(wait(room, route, incoming)).await?;
    }
    if handler.is_blocking() && !room.has_thread() {
        reserve_thread(room, consumer, incoming).await?;
    }
    let call = |incoming: &Incoming| handler.call(context, incoming);
    let call = decode(context, consumer, incoming, call).await?;
    if consumer.options.idempotency.is_some() {
        let report = |error: &Error, after| {
            let error = error.clone();
            core.publish(|| ListenerEventKind::ResultStoreFailed { error, after });
        };
        let claimed = unless_stopping(core, claim(context, consumer, incoming, report)).await;
        match claimed {
            Some(claimed) => claimed?,
            None => return Err(Refusal::Ends(End::Released)),
        }
    }
    let common = room.take_ready().unwrap_or_default();
    Ok(with_layers(call, incoming, own, common))
}

/// Puts around the call the layers of its type's handler, and those of all handlers.
fn with_layers(call: Call, incoming: &Incoming, mut own: Ready, mut common: Ready) -> Call {
    let handled = match call {
        Call::Task(handled) => handled,
        Call::Service(call) => {
            let ready = own.take_service().or_else(|| common.take_service());
            call(ready.expect("a service is ready before its message is handled"))
        }
        call => return call,
    };
    let handled = own.around(incoming, handled);
    Call::Task(common.around(incoming, handled))
}

/// Returns why a message is not handled whose kind no handler takes: it may be for a newer program.
fn unhandled(incoming: &Incoming) -> Refusal {
    let kind = &incoming.envelope.kind;
    Refusal::Ends(End::NewerProgram {
        reason: PoisonReason::UnhandledKind,
        error: format!("no handler of this program takes messages of kind `{kind}`"),
    })
}

/// Takes a turn for a message whose key is known when it is received.
pub(super) fn take_turn_early(room: &Room, route: &TypedRoute, incoming: &Incoming) {
    let (context, consumer) = (&room.core().context, &route.consumer);
    if let Some(keyed) = route.gate.keyed()
        && !lacks_data(consumer, incoming)
        && can_decode_early(context, consumer, incoming)
    {
        // A panic is reported once the message is admitted, when this is tried again.
        let _ = take_turn(room, keyed, incoming);
    }
}

/// Takes a turn for a message, unless it does not decode.
///
/// # Errors
/// The panic of the application's function.
fn take_turn(room: &Room, keyed: &Keyed, incoming: &Incoming) -> Result<(), CaughtPanic> {
    if let Some(turn) = keyed.take(&incoming.body)? {
        room.keep_turn(turn);
    }
    Ok(())
}

/// Waits for what a message needs, its turn first: until then it holds nothing that the messages before it need.
async fn wait(room: &Room, route: &TypedRoute, incoming: &Incoming) -> Result<Ready, Refusal> {
    await_turn(room, &route.consumer, incoming).await?;
    if route.gate.has_limits() {
        pass_gate(room, route, incoming).await
    } else {
        Ok(Ready::default())
    }
}

/// Waits for the turn of a message, if it has a key.
async fn await_turn(room: &Room, consumer: &Consumer, incoming: &Incoming) -> Result<(), Refusal> {
    let Some((before, comes)) = room.turn() else {
        return Ok(());
    };
    let parking = room.capacity().parking();
    let door = Door {
        gives_up_readiness: before > 0,
        place: || (before <= parking.most()).then(|| parking.enter_anyway()),
        patience: incoming.settings.handler_timeout,
    };
    door.wait(room, consumer, incoming, comes).await
}

/// Waits until a message may be handled whose type has limits of its own. Boxed where it is awaited, because few types
/// have limits.
async fn pass_gate(room: &Room, route: &TypedRoute, incoming: &Incoming) -> Result<Ready, Refusal> {
    let core = room.core();
    let passed = match route.gate.pass(core, None).now_or_never() {
        Some(at_once) => at_once,
        None => {
            // The gate waits for it again, before the token.
            let common = room.take_ready().map(|_| room.capacity().ready());
            let passed = route.gate.pass(core, common);
            let (parking, consumer) = (room.capacity().parking(), &route.consumer);
            let door = Door::bounded(parking, incoming);
            door.wait(room, consumer, incoming, passed).await?
        }
    };
    passed
        .common
        .into_iter()
        .for_each(|ready| room.keep_ready(ready));
    passed
        .place
        .into_iter()
        .for_each(|place| room.keep_place(place));
    Ok(passed.ready)
}

/// Obtains a message's data. Boxed where it is awaited, because few messages lack data.
async fn obtain_data(
    room: &Room,
    consumer: &Consumer,
    incoming: &mut Incoming,
) -> Result<(), Refusal> {
    let core = room.core();
    let context = &core.context;
    let most = context.encoder.max_payload();
    let report = |error: &Error, after| {
        let error = error.clone();
        core.publish(|| ListenerEventKind::DataUnavailable { error, after });
    };
    let obtained = async {
        // What is larger than allowed ends before anything is fetched.
        if let Some(bytes) = expanded_size(incoming).filter(|size| *size <= most) {
            grow(room, consumer, incoming, bytes).await?;
        }
        fetch_data(context, consumer, incoming, report).await
    };
    match unless_stopping(core, obtained).await {
        Some(obtained) => obtained,
        None => Err(Refusal::Ends(End::Released)),
    }
}

/// Waits for room for the data of a message.
async fn grow(
    room: &Room,
    consumer: &Consumer,
    incoming: &Incoming,
    bytes: usize,
) -> Result<(), Refusal> {
    if room.grow(bytes).now_or_never().is_some() {
        return Ok(());
    }
    let door = Door {
        gives_up_readiness: true,
        ..Door::bounded(room.capacity().parking(), incoming)
    };
    let grown = room.grow(bytes);
    door.wait(room, consumer, incoming, grown).await
}

/// Reserves a thread for a message that was received without one, which waits while none can be started.
async fn reserve_thread(
    room: &Room,
    consumer: &Consumer,
    incoming: &Incoming,
) -> Result<(), Refusal> {
    let door = Door::bounded(room.capacity().parking(), incoming);
    let reserved = thread(room.capacity());
    let thread = door.wait(room, consumer, incoming, reserved).await?;
    room.keep_thread(thread);
    Ok(())
}

/// How a message waits for something that its listener has.
struct Door<P> {
    /// Whether the message does without the readiness of layers meanwhile, for which those may wait who have what it waits
    /// for.
    gives_up_readiness: bool,
    /// Returns the message's place in the parking room, if there is one for it.
    place: P,
    /// How long the message waits before it is put back.
    patience: Duration,
}

impl Door<()> {
    /// A door before which half of the messages in flight may wait, for a visibility timeout.
    fn bounded<'p>(
        parking: &'p Arc<ParkingRoom>,
        incoming: &Incoming,
    ) -> Door<impl FnOnce() -> Option<Parked> + use<'p>> {
        Door {
            gives_up_readiness: false,
            place: || parking.enter(),
            patience: incoming.settings.visibility,
        }
    }
}

impl<P: FnOnce() -> Option<Parked>> Door<P> {
    /// Waits, unless the listener is stopping.
    async fn wait<T>(
        self,
        room: &Room,
        consumer: &Consumer,
        incoming: &Incoming,
        wanted: impl Future<Output = T>,
    ) -> Result<T, Refusal> {
        let core = room.core();
        let given_up = self.gives_up_readiness && room.take_ready().is_some();
        let wanted = async {
            let wanted = wanted.await;
            if given_up {
                room.keep_ready(until_ready(core, room.capacity().ready()).await);
            }
            wanted
        };
        let settling = Settling::new(&core.context, consumer, incoming);
        let parking = room.capacity().parking();
        let parked = park(parking, self.place, self.patience, settling, wanted);
        let parked = unless_stopping(core, parked).await;
        parked.unwrap_or(Err(Refusal::Ends(End::Released)))
    }
}

/// Reserves a thread, and reports when none can be started.
///
/// # Cancel safety
/// Cancel safe.
pub(super) async fn thread(capacity: &Capacity) -> Reserved {
    let core = capacity.core();
    let mut failures = 0;
    loop {
        let error = match capacity.reserve_thread() {
            Ok(thread) => return thread,
            Err(error) => Arc::new(error),
        };
        failures += 1;
        let after = outage_pause(RetryAdvice::Temporary, failures, jitter());
        core.tell(ListenerEventKind::NoThread { error, after });
        core.context.clock.sleep(after).await;
    }
}

/// Awaits something that may take long, unless the listener is stopping.
async fn unless_stopping<T>(core: &Core, awaited: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        ready = awaited => Some(ready),
        _ = core.phase.reached(ListenerPhase::Stopping) => None,
    }
}
