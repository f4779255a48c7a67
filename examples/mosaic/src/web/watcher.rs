//! The one watcher of the storage, for all pages.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use queue_cost::PriceTable;
use queue_runtime::{Failure, QueueService};
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use super::board::{Board, Usage};
use crate::storage::records::{Records, RequestState};
use crate::storage::store::{CONCURRENCY, Store, StoreError};
use crate::workflow::changes::Changes;

/// The shortest pause between two looks at the records.
const SHORTEST_PAUSE: Duration = Duration::from_millis(80);
/// The longest pause, if nothing is announced: while a job runs, while none does, and while no page is open.
const WHILE_RUNNING: Duration = Duration::from_secs(1);
const WHILE_IDLE: Duration = Duration::from_secs(5);
const WHILE_UNSEEN: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Watcher {
    service: QueueService,
    store: Store,
    records: Records,
    prices: PriceTable,
    board: watch::Sender<Arc<Board>>,
    opened: Arc<Notify>,
}

impl Watcher {
    pub(super) fn new(service: &QueueService, store: &Store, prices: PriceTable) -> Self {
        let board = Board {
            usage: Usage::of(service, &prices),
            ..Board::default()
        };
        Self {
            service: service.clone(),
            store: store.clone(),
            records: Records::new(store.clone()),
            board: watch::Sender::new(Arc::new(board)),
            prices,
            opened: Arc::default(),
        }
    }

    /// What the watcher sees, and what tells it that a page was opened.
    pub(super) fn board(&self) -> (watch::Sender<Arc<Board>>, Arc<Notify>) {
        (self.board.clone(), Arc::clone(&self.opened))
    }

    pub(super) async fn run(&self) {
        let mut changes = Changes::new(&self.service, &self.store);
        loop {
            let mut board = Board::clone(&self.board.borrow());
            match self.look(&mut board).await {
                Ok(()) => board.problem = None,
                Err(error) => {
                    let error = Failure::retry(error).chain();
                    tracing::warn!(error, "failed to read the records of jobs; will try again");
                    board.problem = Some(error);
                }
            }
            board.usage = Usage::of(&self.service, &self.prices);
            let runs = board.jobs.values().any(|job| job.outcome.is_none());
            self.board.send_replace(Arc::new(board));
            sleep(SHORTEST_PAUSE).await;
            let longest = match self.board.receiver_count() {
                0 => WHILE_UNSEEN,
                _ if runs => WHILE_RUNNING,
                _ => WHILE_IDLE,
            };
            tokio::select! {
                () = changes.next(longest) => {}
                () = self.opened.notified() => {}
            }
        }
    }

    /// Reads what has changed: jobs that are new, and those that are not over.
    async fn look(&self, board: &mut Board) -> Result<(), StoreError> {
        let folders: BTreeSet<String> = self.records.folders().await?.into_iter().collect();
        board.jobs.retain(|folder, _| folders.contains(folder));
        let open = folders
            .into_iter()
            .filter_map(|folder| match board.jobs.get(&folder) {
                Some(job) if job.outcome.is_some() => None,
                _ if board.unreadable.contains(&folder) => None,
                known => Some((folder, known.cloned())),
            });
        let open: Vec<_> = open.collect();
        let looks = open.into_iter().map(|(folder, known)| async move {
            let known = known.map(|known| RequestState::clone(&known));
            let seen = self.records.state_in(&folder, known).await;
            (folder, seen)
        });
        let mut looks = stream::iter(looks).buffer_unordered(CONCURRENCY);
        let mut failed = None;
        while let Some((folder, seen)) = looks.next().await {
            match seen {
                Ok(Some(job)) => {
                    board.jobs.insert(folder, Arc::new(job));
                }
                Ok(None) => {}
                Err(error @ (StoreError::Record { .. } | StoreError::TooLarge { .. })) => {
                    let error = Failure::reject(error).chain();
                    tracing::warn!(error, "a job whose records cannot be read is not shown");
                    board.unreadable.insert(folder);
                }
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(()), Err)
    }
}
