//! Instances of a program for an agent, in this process and in paused time, and the messages that they handle.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_agent::{Ended, Instance, Instances, Report};
use queue_runtime::backend::{Backend, MemoryBackend};
use queue_runtime::policy::Objective;
use queue_runtime::testing::TokioClock;
use queue_runtime::{Failure, ListenerEvent, Message, QueueName, QueueService, Received};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::Receiver;
use tokio::time::{Instant, sleep};

/// Long enough for the slowest machine; only a hang meets it.
pub(crate) const GUARD: Duration = Duration::from_secs(60);

/// Long enough that no handler times out while its thread is started, in tests with paused time too.
pub(crate) const NEVER: Duration = Duration::from_secs(7 * 24 * 3600);

const START_UP: Duration = Duration::from_secs(20);

/// A storage, and services that reach it by themselves.
pub(crate) struct World(pub(crate) Arc<dyn Backend>);

impl World {
    pub(crate) fn new() -> Self {
        Self(Arc::new(MemoryBackend::new(Arc::new(TokioClock::new()))))
    }

    pub(crate) async fn service(&self) -> QueueService {
        service_on(Arc::clone(&self.0)).await
    }
}

pub(crate) async fn service_on(backend: Arc<dyn Backend>) -> QueueService {
    let service = QueueService::with_backend(backend).clock(Arc::new(TokioClock::new()));
    let service = service.on_current_runtime();
    service.connect().await.expect("connects")
}

/// Instances that are services with a listener each. An instance handles two messages at a time, each in so many seconds,
/// from 20 s after its start on.
#[derive(Clone)]
pub(crate) struct InProcess {
    storage: Arc<dyn Backend>,
    seconds: u64,
    all: Arc<Mutex<Vec<(String, Started)>>>,
    pub(crate) events: Arc<Mutex<Vec<Receiver<ListenerEvent>>>>,
}

#[derive(Clone)]
struct Started {
    at: Instant,
    service: QueueService,
    ended: Option<Ended>,
}

impl InProcess {
    pub(crate) fn new(world: &World, seconds: u64) -> Self {
        Self {
            storage: Arc::clone(&world.0),
            seconds,
            all: Arc::default(),
            events: Arc::default(),
        }
    }

    /// Ends an instance as a crash does.
    pub(crate) fn kill(&self) {
        let mut all = self.all.lock().expect("free");
        let living = all.iter_mut().find(|(_, one)| one.ended.is_none());
        let (_, one) = living.expect("one runs");
        let (success, how) = (false, "signal: 9".to_owned());
        one.ended = Some(Ended { success, how });
    }

    pub(crate) fn running(&self) -> usize {
        let all = self.all.lock().expect("free");
        all.iter().filter(|(_, one)| one.ended.is_none()).count()
    }
}

#[async_trait::async_trait]
impl Instances for InProcess {
    async fn start(&mut self, queues: &[QueueName]) -> Result<String, Failure> {
        assert_eq!(queues, [Job::TYPE.queue()]);
        let service = service_on(Arc::clone(&self.storage)).await;
        let seconds = Duration::from_secs(self.seconds);
        let listener = service.listener(move |_: Received<Job>| sleep(seconds));
        let listener = listener.max_in_flight(2).handler_timeout(NEVER);
        let listener = listener.objective(Objective::p99(Duration::from_secs(60)));
        self.events.lock().expect("free").push(listener.events());
        let later = listener.start()?;
        later.pause();
        tokio::spawn(async move {
            sleep(START_UP).await;
            later.resume();
        });
        let mut all = self.all.lock().expect("free");
        let id = format!("instance {}", all.len());
        let (at, ended) = (Instant::now(), None);
        all.push((id.clone(), Started { at, service, ended }));
        Ok(id)
    }

    async fn stop(&mut self, id: &str, grace: Duration) -> Result<(), Failure> {
        let found = |all: &[(String, Started)]| {
            let one = all.iter().find(|(of, _)| of == id);
            one.expect("it was started").1.service.clone()
        };
        let service = found(&self.all.lock().expect("free"));
        let (all, id) = (Arc::clone(&self.all), id.to_owned());
        tokio::spawn(async move {
            service.shutdown(grace).await;
            let (success, how) = (true, "exit status: 0".to_owned());
            let mut all = all.lock().expect("free");
            let one = all.iter_mut().find(|(of, _)| *of == id);
            one.expect("it was started").1.ended = Some(Ended { success, how });
        });
        Ok(())
    }

    async fn list(&mut self) -> Result<Vec<Instance>, Failure> {
        let all = self.all.lock().expect("free");
        let listed = all.iter().map(|(id, one)| match &one.ended {
            Some(ended) => Instance::ended(id, ended.clone()),
            None if one.at.elapsed() < START_UP => Instance::running(id),
            None => {
                let report = Report::of(&one.service, [Job::TYPE.queue().as_str()]);
                Instance::running(id).with_report(report)
            }
        });
        Ok(listed.collect())
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "jobs", kind = "job", poison_threshold = 3)]
pub(crate) struct Job {}

/// Submits jobs, and creates their queue if there are none.
pub(crate) async fn submit_jobs(service: &QueueService, jobs: usize) {
    let queue = service.any_queue("jobs").expect("a name");
    queue.create().await.expect("created");
    let jobs = (0..jobs).map(|_| Job {});
    service.submit_all(jobs).await.expect("submitted");
}

pub(crate) async fn memory() -> QueueService {
    QueueService::connect("memory:")
        .await
        .expect("the memory engine opens")
}
