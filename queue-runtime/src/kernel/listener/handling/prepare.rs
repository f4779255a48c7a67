//! What a leased message has to have before its handler is called, in this order, and how it waits for each: at a *door*,
//! of the listener's own, or one that was [added](crate::listener::Door).
//!
//! | door | when | waits in the parking room | gives up meanwhile | is put back after |
//! |---|---|---|---|---|
//! | what was added, such as the turn of its key | before its attempt begins if what that needs is known then, otherwise once its data is read | in one of the bounded places; in a line always, unless as many wait before it | readiness | a visibility timeout; in a line the handler's timeout, unless it has an order to keep |
//! | the limits of its type: a place, readiness, a token of the rate | with those | in one of the bounded places | readiness | a visibility timeout |
//! | an attempt: [`admit`] | then | – | – | – |
//! | room for its data | if the data is elsewhere or compressed | in one of the bounded places | readiness | a visibility timeout |
//! | its data | then | no | – | a visibility timeout of an outage |
//! | a thread | if its handler blocks and it has none | in one of the bounded places | – | a visibility timeout |
//! | the claim of its idempotency key | once it is decoded | no | – | a visibility timeout of an outage, or the other claim |
//!
//! At each door the message is kept leased, and put back in its place if the listener stops. What is put back counts no
//! attempt. `accept` knows the doors that need no listener: an attempt, the data, and the claim, of which it gets the error.
//! A pause of the queue is no door: it hands messages back.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use queue_core::envelope::PoisonReason;
use queue_core::{Error, Failure, RetryAdvice};

use super::routes::TypedRoute;
use super::routes::until_ready;
use crate::kernel::listener::capacity::{Capacity, Reserved, Room};
use crate::kernel::listener::core::Core;
use crate::kernel::listener::doors::{Arriving, Wait};
use crate::kernel::listener::event::ListenerEventKind;
use crate::kernel::listener::phase::ListenerPhase;
use crate::kernel::policy::{jitter, outage_pause};
use crate::kernel::receive::{
    Call, Consumer, End, Incoming, Parked, Ready, Refusal, Settling, admit, can_decode_early,
    can_wait_outside, claim, decode, expanded_size, fetch_data, is_admissible, lacks_data, park,
    put_back_after,
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
    // What is not handled waits for nothing.
    let waits = route.gate.is_needed() && is_admissible(context, consumer, incoming);
    if waits && !route.gate.doors.keep_order() {
        arrive_early(room, route, incoming);
    }
    let mut own = Ready::default();
    let early = if route.gate.doors.is_empty() {
        Some(Vec::new())
    } else {
        room.take_waits()
    };
    let waits_late = waits && early.is_none();
    if let Some(early) = early.filter(|_| waits) {
        own = Box::pin(wait(room, route, incoming, early)).await?;
    }
    admit(context, consumer, incoming).await?;
    if lacks_data(consumer, incoming) {
        Box::pin(obtain_data(room, route, incoming)).await?;
    }
    if waits_late {
        own = Box::pin(wait_late(room, route, incoming)).await?;
    }
    if handler.is_blocking() && !room.has_thread() {
        reserve_thread(room, route, incoming).await?;
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

/// Has a message arrive at its doors before its attempt begins, if they need nothing of it that is not there yet. A failure is
/// reported once the message is admitted, when this is tried again.
pub(super) fn arrive_early(room: &Room, route: &TypedRoute, incoming: &Incoming) {
    let (context, consumer) = (&room.core().context, &route.consumer);
    let is_known =
        || !lacks_data(consumer, incoming) && can_decode_early(context, consumer, incoming);
    if !route.gate.doors.need_payload() || is_known() {
        let _ = arrive(room, route, incoming);
    }
}

fn arrive(room: &Room, route: &TypedRoute, incoming: &Incoming) -> Result<(), Failure> {
    let waits = route.gate.doors.arrive(&Arriving::new(incoming))?;
    room.arrived(waits);
    Ok(())
}

/// Has a message arrive at its doors whose attempt has begun, and waits.
async fn wait_late(room: &Room, route: &TypedRoute, incoming: &Incoming) -> Result<Ready, Refusal> {
    let (context, consumer) = (&room.core().context, &route.consumer);
    arrive(room, route, incoming).map_err(|failure| failed(route, failure))?;
    let mut waits = room.take_waits().unwrap_or_default();
    let has_to_wait = waits.iter_mut().any(|wait| !wait.is_over());
    let after = put_back_after(&incoming.envelope);
    let settling = Settling::new(context, consumer, incoming);
    let is_marked = incoming.envelope.attempts.last_chance;
    if is_marked && has_to_wait && can_wait_outside(settling, after) {
        // Put back without its mark: whatever ends the process meanwhile is not the message's doing.
        let reason =
            Some("the message has to wait for its turn, and is on its last chance".to_owned());
        return Err(Refusal::Ends(End::Postponed { after, reason }));
    }
    wait(room, route, incoming, waits).await
}

fn failed(route: &TypedRoute, failure: Failure) -> Refusal {
    let classifiers = &route.consumer.options.classifiers;
    Refusal::Ends(End::of(&failure.into(), classifiers))
}

/// Waits for what a message needs, at its doors first: until then it holds nothing that the messages before it need.
async fn wait(
    room: &Room,
    route: &TypedRoute,
    incoming: &Incoming,
    waits: Vec<Wait>,
) -> Result<Ready, Refusal> {
    let (parking, visibility) = (room.capacity().parking(), incoming.settings.visibility);
    let keeps_order = route.gate.doors.keep_order();
    for wait in waits {
        let place = || match wait.line {
            Some(before) => (before <= parking.most()).then(|| parking.enter_anyway()),
            None => parking.enter(),
        };
        let door = AtDoor {
            gives_up_readiness: true,
            place,
            patience: wait
                .line
                .map_or(visibility, |_| incoming.settings.handler_timeout),
            keeps_order,
        };
        let passed = door
            .wait(room, &route.consumer, incoming, wait.opens)
            .await?;
        room.keep_pass(passed.map_err(|failure| failed(route, failure))?);
    }
    if route.gate.has_limits() {
        pass_gate(room, route, incoming).await
    } else {
        Ok(Ready::default())
    }
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
            let consumer = &route.consumer;
            let door = AtDoor::bounded(room, route, incoming);
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
    route: &TypedRoute,
    incoming: &mut Incoming,
) -> Result<(), Refusal> {
    let core = room.core();
    let (context, consumer) = (&core.context, &route.consumer);
    let most = context.encoder.max_payload();
    let report = |error: &Error, after| {
        let error = error.clone();
        core.publish(|| ListenerEventKind::DataUnavailable { error, after });
    };
    let obtained = async {
        // What is larger than allowed ends before anything is fetched.
        if let Some(bytes) = expanded_size(incoming).filter(|size| *size <= most) {
            grow(room, route, incoming, bytes).await?;
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
    route: &TypedRoute,
    incoming: &Incoming,
    bytes: usize,
) -> Result<(), Refusal> {
    let door = AtDoor {
        gives_up_readiness: true,
        ..AtDoor::bounded(room, route, incoming)
    };
    let grown = room.grow(bytes);
    door.wait(room, &route.consumer, incoming, grown).await
}

/// Reserves a thread for a message that was received without one, which waits while none can be started.
async fn reserve_thread(
    room: &Room,
    route: &TypedRoute,
    incoming: &Incoming,
) -> Result<(), Refusal> {
    let door = AtDoor::bounded(room, route, incoming);
    let reserved = thread(room.capacity());
    let thread = door.wait(room, &route.consumer, incoming, reserved).await?;
    room.keep_thread(thread);
    Ok(())
}

/// How a message waits for something.
struct AtDoor<P> {
    /// Whether the message does without the readiness of layers meanwhile, for which those may wait who have what it waits
    /// for.
    gives_up_readiness: bool,
    /// Returns the message's place in the parking room, if there is one for it.
    place: P,
    /// How long the message waits before it is put back.
    patience: Duration,
    /// Whether the message is not put back once it has a place, however long it waits: those behind it would go first.
    keeps_order: bool,
}

impl AtDoor<()> {
    /// A door before which half of the messages in flight may wait, for a visibility timeout.
    fn bounded<'r>(
        room: &'r Room,
        route: &TypedRoute,
        incoming: &Incoming,
    ) -> AtDoor<impl FnOnce() -> Option<Parked> + use<'r>> {
        AtDoor {
            gives_up_readiness: false,
            place: || room.capacity().parking().enter(),
            patience: incoming.settings.visibility,
            keeps_order: route.gate.doors.keep_order(),
        }
    }
}

impl<P: FnOnce() -> Option<Parked>> AtDoor<P> {
    /// Waits, unless the listener is stopping.
    async fn wait<T>(
        self,
        room: &Room,
        consumer: &Consumer,
        incoming: &Incoming,
        wanted: impl Future<Output = T>,
    ) -> Result<T, Refusal> {
        let core = room.core();
        let mut wanted = pin!(wanted);
        if let Some(at_once) = wanted.as_mut().now_or_never() {
            return Ok(at_once);
        }
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
        let parked = park(
            parking,
            self.place,
            self.patience,
            self.keeps_order,
            settling,
            wanted,
        );
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
