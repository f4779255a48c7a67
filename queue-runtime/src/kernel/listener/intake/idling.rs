use crate::kernel::listener::core::Core;
use crate::kernel::listener::event::ListenerEventKind;
use crate::kernel::panic::catch;
use crate::kernel::policy::{ExponentialIdle, Idle, IdlePolicy, jitter};

/// Returns what the idle policy is told by a task that has found the queue empty `count` times in a row.
pub(super) fn idleness(core: &Core, count: u32) -> Idle {
    Idle {
        depth: core.counters.depth(),
        active_tasks: core.intake.tasks.counts().active,
        in_flight: core.counters.in_flight(),
        ..Idle::new(count, jitter())
    }
}

/// Asks the idle policy. If it panics, the default policy answers.
pub(super) fn ask<T>(core: &Core, question: impl Fn(&dyn IdlePolicy) -> T) -> T {
    catch(|| question(&*core.intake.idle)).unwrap_or_else(|panic| {
        let queue = &core.consumer.queue;
        tracing::error!(%queue, %panic, "the idle policy panicked; using the default");
        core.publish(|| ListenerEventKind::PolicyPanicked { panic });
        let idle_cap = core.context.backend.capabilities().idle_cap;
        question(&ExponentialIdle::up_to(idle_cap))
    })
}
