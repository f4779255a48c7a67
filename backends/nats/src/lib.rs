//! Wake-ups between machines, by a NATS server: a [`Notifier`](queue_core::notify::Notifier) for consumers of queues
//! whose storage announces nothing to other machines.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod notifier;

pub use notifier::{NatsError, NatsNotifier};
