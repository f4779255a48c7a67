//! All roles in one process.

use std::time::Duration;

use futures_util::future::{join_all, select_all};
use queue_runtime::{Failure, QueueService, StartError};

use crate::storage::store::Store;
use crate::workflow::roles::{Role, Settings, Totals, broker, controller, processor};

/// A broker, a controller and processors, running. Dropping `Embedded` stops the roles at once.
#[derive(Debug)]
#[must_use = "dropping the roles stops them"]
pub struct Embedded {
    roles: Vec<Role>,
}

impl Embedded {
    /// Starts only the broker.
    pub fn broker(service: &QueueService, store: &Store, settings: &Settings) -> Self {
        let roles = vec![broker(service, store, settings)];
        Self { roles }
    }

    /// Starts the roles, with up to this many slices in flight. Without processors, some must run elsewhere.
    ///
    /// # Errors
    /// [`StartError`] if a setting is invalid.
    pub fn start(
        service: &QueueService,
        store: &Store,
        processors: usize,
        settings: &Settings,
    ) -> Result<Self, StartError> {
        let mut roles = vec![
            broker(service, store, settings),
            controller(service, store, settings)?,
        ];
        if processors > 0 {
            let settings = Settings {
                tasks: processors,
                ..*settings
            };
            roles.push(processor(service, store, &settings)?);
        }
        Ok(Self { roles })
    }

    /// Waits until a role has failed.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn failed(&mut self) -> Failure {
        let failed = self.roles.iter_mut().map(|role| Box::pin(role.failed()));
        select_all(failed).await.0
    }

    /// Waits up to `grace` for handlers to finish, then stops. Returns the totals of all roles.
    pub async fn shutdown(&mut self, grace: Duration) -> Totals {
        let mut totals = Totals::default();
        for ended in join_all(self.roles.iter_mut().map(|role| role.shutdown(grace))).await {
            totals += ended;
        }
        totals
    }
}
