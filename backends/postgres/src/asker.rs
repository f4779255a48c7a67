//! Tasks that own a connection and carry out one request after the other.

use queue_core::clock::BoxFuture;
use tokio::sync::{mpsc, oneshot};

use crate::failure::{Failure, Result};
use crate::session::{Link, Session};

/// A request to a task that owns a connection: what to do with its session.
type Job = Box<dyn for<'s> FnOnce(Result<&'s mut Session>) -> BoxFuture<'s, ()> + Send>;

/// The way to a task that carries out one request after the other.
#[derive(Debug, Clone)]
pub(crate) struct Asker(mpsc::UnboundedSender<Job>);

/// An [`Asker`] that does not keep its task alive.
#[derive(Debug)]
pub(crate) struct WeakAsker(mpsc::WeakUnboundedSender<Job>);

impl WeakAsker {
    pub(crate) fn upgrade(&self) -> Option<Asker> {
        self.0.upgrade().map(Asker)
    }
}

impl Asker {
    /// Starts the task, which ends with the last clone of the asker.
    pub(crate) fn start(mut link: Link) -> Self {
        let (jobs, mut requests) = mpsc::unbounded_channel::<Job>();
        tokio::spawn(async move {
            while let Some(job) = requests.recv().await {
                job(link.session().await).await;
            }
        });
        Self(jobs)
    }

    /// Returns a way to the task that does not keep it alive.
    pub(crate) fn downgrade(&self) -> WeakAsker {
        WeakAsker(self.0.downgrade())
    }

    /// Has the task work with its session, and returns what the work returns.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        work: impl for<'s> FnOnce(&'s mut Session) -> BoxFuture<'s, Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(|session| {
            Box::pin(async {
                let done = match session {
                    Ok(session) => work(session).await,
                    Err(failure) => Err(failure),
                };
                // The caller may have stopped waiting.
                drop(reply.send(done));
            })
        });
        self.0.send(job).map_err(|_| Failure::Closed)?;
        answer.await.unwrap_or(Err(Failure::Unanswered))
    }
}
