//! All roles in one process.

use std::time::Duration;

use futures_util::future::join_all;
use queue_runtime::{QueueService, StartError};

use crate::storage::store::Store;
use crate::workflow::roles::{Role, Settings, Totals, broker, controller, processor};

/// A broker, a controller and processors, running. Dropping them stops them at once.
#[derive(Debug)]
#[must_use = "dropping the roles stops them"]
pub struct Embedded {
    roles: Vec<Role>,
}

impl Embedded {
    /// Starts the roles; each processor renders one slice at a time.
    ///
    /// # Errors
    /// [`StartError`] if a setting is invalid.
    pub fn start(
        service: &QueueService,
        store: &Store,
        processors: usize,
        settings: &Settings,
    ) -> Result<Self, StartError> {
        let one = Settings {
            tasks: 1,
            ..*settings
        };
        let mut roles = vec![
            broker(service, store, settings)?,
            controller(service, store, settings)?,
        ];
        for _ in 0..processors {
            roles.push(processor(service, store, &one)?);
        }
        Ok(Self { roles })
    }

    /// How many instances of the processor should run, if the settings ask for advice.
    #[must_use]
    pub fn wanted_instances(&self) -> Option<usize> {
        self.roles.iter().find_map(Role::wanted_instances)
    }

    /// Waits up to `grace` for handlers to finish, then stops. Returns the totals of all roles.
    pub async fn shutdown(self, grace: Duration) -> Totals {
        let mut totals = Totals::default();
        for ended in join_all(self.roles.into_iter().map(|role| role.shutdown(grace))).await {
            totals += ended;
        }
        totals
    }
}
