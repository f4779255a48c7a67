use std::time::Duration;

use async_trait::async_trait;
use queue_core::{Failure, QueueName};

use super::instance::{Instance, Instances};

/// Instances that another scaler starts and stops, as it was advised.
#[derive(Debug, Default)]
pub(super) struct Advised {
    running: Vec<String>,
    started: u64,
}

#[async_trait]
impl Instances for Advised {
    async fn start(&mut self, _: &QueueName) -> Result<String, Failure> {
        self.started += 1;
        let id = self.started.to_string();
        self.running.push(id.clone());
        Ok(id)
    }

    async fn stop(&mut self, id: &str, _: Duration) -> Result<(), Failure> {
        self.running.retain(|one| one != id);
        Ok(())
    }

    async fn list(&mut self) -> Result<Vec<Instance>, Failure> {
        Ok(self.running.iter().map(Instance::running).collect())
    }
}
