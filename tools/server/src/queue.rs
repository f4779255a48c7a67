//! The operations on a queue.

use http::header::HeaderName;
use http::{HeaderMap, StatusCode};
use queue_azure_wire::METADATA_PREFIX;
use queue_azure_wire::code::Code;
use queue_core::backend::{Created, Metadata};
use queue_core::{ErrorKind, QueueName};

use crate::account::Account;
use crate::answer::{Answer, Refusal};
use crate::settings;

const COUNT: HeaderName = HeaderName::from_static("x-ms-approximate-messages-count");

pub(crate) async fn create(
    account: &Account,
    queue: &QueueName,
    headers: &HeaderMap,
) -> Result<Answer, Refusal> {
    let metadata = metadata_of(headers)?;
    // Of a queue of the same name that was deleted by another way than this server.
    if let Some(policies) = settings::recorded_policies(account, queue).await?
        && is_missing(account, queue).await?
    {
        settings::forget_these_policies(account, queue, policies).await?;
    }
    let created = account.queues.create_queue(queue, &metadata).await;
    let status = match created.map_err(|error| Refusal::of(&error))? {
        Created::New => StatusCode::CREATED,
        Created::Existed => StatusCode::NO_CONTENT,
    };
    Ok(Answer::empty(status))
}

pub(crate) async fn delete(account: &Account, queue: &QueueName) -> Result<Answer, Refusal> {
    // First: what ends in between leaves a queue that nobody may use, and no signatures for the next one of its name.
    settings::forget_policies(account, queue).await?;
    let deleted = account.queues.delete_queue(queue).await;
    deleted.map_err(|error| Refusal::of(&error))?;
    Ok(Answer::empty(StatusCode::NO_CONTENT))
}

pub(crate) async fn metadata(account: &Account, queue: &QueueName) -> Result<Answer, Refusal> {
    let properties = account.queues.properties(queue).await;
    let properties = properties.map_err(|error| Refusal::of(&error))?;
    let mut answer = Answer::empty(StatusCode::OK);
    answer.set(COUNT, &properties.approximate_count.to_string());
    for (name, value) in properties.metadata.iter() {
        if let Ok(name) = HeaderName::try_from(format!("{METADATA_PREFIX}{name}")) {
            answer.set(name, value);
        }
    }
    Ok(answer)
}

pub(crate) async fn set_metadata(
    account: &Account,
    queue: &QueueName,
    headers: &HeaderMap,
) -> Result<Answer, Refusal> {
    let set = account
        .queues
        .set_metadata(queue, &metadata_of(headers)?)
        .await;
    set.map_err(|error| Refusal::of(&error))?;
    Ok(Answer::empty(StatusCode::NO_CONTENT))
}

pub(crate) async fn acl(account: &Account, queue: &QueueName) -> Result<Answer, Refusal> {
    exists(account, queue).await?;
    let policies = settings::policies(account, queue).await?;
    Ok(Answer::xml(
        StatusCode::OK,
        &settings::policies_xml(&policies),
    ))
}

pub(crate) async fn set_acl(
    account: &Account,
    queue: &QueueName,
    body: &[u8],
) -> Result<Answer, Refusal> {
    exists(account, queue).await?;
    settings::set_policies(account, queue, body).await?;
    Ok(Answer::empty(StatusCode::NO_CONTENT))
}

async fn is_missing(account: &Account, queue: &QueueName) -> Result<bool, Refusal> {
    match account.queues.metadata(queue).await {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == ErrorKind::QueueNotFound => Ok(true),
        Err(error) => Err(Refusal::of(&error)),
    }
}

async fn exists(account: &Account, queue: &QueueName) -> Result<(), Refusal> {
    let metadata = account.queues.metadata(queue).await;
    metadata.map(drop).map_err(|error| Refusal::of(&error))
}

fn metadata_of(headers: &HeaderMap) -> Result<Metadata, Refusal> {
    let mut metadata = Metadata::new();
    for (name, value) in headers {
        let Some(name) = name.as_str().strip_prefix(METADATA_PREFIX) else {
            continue;
        };
        if name.is_empty() {
            return Err(Code::EmptyMetadataKey.into());
        }
        let value = value.to_str().map_err(|_| Code::InvalidMetadata)?;
        let inserted = metadata.insert(name, value.trim());
        inserted.map_err(|error| Refusal::with_detail(Code::InvalidMetadata, error.to_string()))?;
    }
    Ok(metadata)
}
