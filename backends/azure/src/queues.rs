//! Requests on queues.

use std::collections::{HashMap, HashSet};

use azure_storage_queue::models::{
    QueueClientClearOptions, QueueClientCreateOptions, QueueClientDeleteOptions,
    QueueClientGetPropertiesOptions, QueueClientSetMetadataOptions,
    QueueServiceClientListQueuesOptions,
};
use futures_util::TryStreamExt;
use queue_core::backend::{Created, Metadata, QueueProperties};
use queue_core::{Operation, QueueName, Result};

use super::failure::Failure;
use super::reply;
use super::requests::Requests;

/// The maximum number of pages of a list. A page has up to 5,000 queues.
const MAX_PAGES: usize = 10_000;

impl Requests {
    pub(super) async fn create_queue(
        &self,
        queue: &QueueName,
        metadata: &Metadata,
    ) -> Result<Created> {
        let metadata = headers_of(metadata);
        let created = self.on_queue(Operation::CreateQueue, queue, None, |client, options| {
            let options = QueueClientCreateOptions {
                method_options: options,
                metadata: Some(metadata),
                ..QueueClientCreateOptions::default()
            };
            async move { client.create(Some(options)).await }
        });
        match u16::from(created.await?.status()) {
            201 => Ok(Created::New),
            _ => Ok(Created::Existed),
        }
    }

    pub(super) async fn delete_queue(&self, queue: &QueueName) -> Result<()> {
        let deleted = self.on_queue(Operation::DeleteQueue, queue, None, |client, options| {
            let options = QueueClientDeleteOptions {
                method_options: options,
                ..QueueClientDeleteOptions::default()
            };
            async move { client.delete(Some(options)).await }
        });
        deleted.await.map(drop)
    }

    pub(super) async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>> {
        let fail =
            |failure: Failure| failure.into_error(Operation::ListQueues, self.caller.clock.now());
        let mut names = Vec::new();
        let mut marker: Option<String> = None;
        let mut seen = HashSet::new();
        loop {
            let page = self.caller.call(Operation::ListQueues, None, |options| {
                let mut listing = QueueServiceClientListQueuesOptions::default();
                listing.method_options.context = options.context;
                listing.marker = marker.clone();
                listing.prefix = (!prefix.is_empty()).then(|| prefix.to_owned());
                let pager = self.service.list_queues(Some(listing));
                async move { pager?.into_pages().try_next().await }
            });
            let Some(page) = page.await.map_err(fail)? else {
                break;
            };
            let (more, next) = reply::queues(page.body()).map_err(fail)?;
            names.extend(more);
            let Some(next) = next else {
                break;
            };
            if seen.len() == MAX_PAGES {
                return Err(fail(Failure::Malformed(
                    "the list of queues exceeds the maximum number of pages",
                )));
            }
            if !seen.insert(next.clone()) {
                return Err(fail(Failure::Malformed(
                    "a continuation marker was returned twice",
                )));
            }
            marker = Some(next);
        }
        names.sort();
        Ok(names)
    }

    pub(super) async fn properties(&self, queue: &QueueName) -> Result<QueueProperties> {
        let answer = self.on_queue(Operation::Properties, queue, None, |client, options| {
            let options = QueueClientGetPropertiesOptions {
                method_options: options,
                ..QueueClientGetPropertiesOptions::default()
            };
            async move { client.get_properties(Some(options)).await }
        });
        reply::properties(answer.await?.headers())
            .map_err(|failure| self.error(failure, Operation::Properties, queue))
    }

    pub(super) async fn set_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<()> {
        let metadata = headers_of(metadata);
        let set = self.on_queue(Operation::SetMetadata, queue, None, |client, options| {
            let options = QueueClientSetMetadataOptions {
                method_options: options,
                ..QueueClientSetMetadataOptions::default()
            };
            async move { client.set_metadata(&metadata, Some(options)).await }
        });
        set.await.map(drop)
    }

    pub(super) async fn clear(&self, queue: &QueueName) -> Result<()> {
        let cleared = self.on_queue(Operation::Clear, queue, None, |client, options| {
            let options = QueueClientClearOptions {
                method_options: options,
                ..QueueClientClearOptions::default()
            };
            async move { client.clear(Some(options)).await }
        });
        cleared.await.map(drop)
    }
}

fn headers_of(metadata: &Metadata) -> HashMap<String, String> {
    let entries = metadata.iter();
    entries
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}
