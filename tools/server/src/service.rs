//! The operations on an account.

use std::fmt::Write as _;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use http::StatusCode;
use queue_azure_wire::MAX_LISTED;
use queue_azure_wire::code::Code;
use queue_azure_wire::xml::escaped;
use queue_core::backend::Metadata;
use queue_core::{Error, ErrorKind, QueueName};

use crate::account::Account;
use crate::answer::{Answer, Refusal, date};
use crate::settings;
use crate::target::Query;

/// How many queues' metadata are read at a time for a list.
const AT_ONCE: usize = 8;

/// Lists queues in the order of their names: those from the marker on.
pub(crate) async fn list(
    account: &Account,
    query: &Query,
    endpoint: &str,
) -> Result<Answer, Refusal> {
    let prefix = query.find("prefix").unwrap_or_default();
    let marker = query.find("marker").unwrap_or_default();
    let most = query.within("maxresults", 1..=i64::MAX)?;
    let most = most.map_or(MAX_LISTED, |most| {
        usize::try_from(most).unwrap_or(MAX_LISTED)
    });
    let most = most.min(MAX_LISTED);
    let with_metadata = match query.find("include").unwrap_or_default() {
        "" => false,
        "metadata" => true,
        other => {
            return Err(Refusal::of_parameter(
                Code::InvalidQueryParameterValue,
                "include",
                other,
            ));
        }
    };
    let listed = account.queues.list_queues(prefix).await;
    let mut names = listed.map_err(|error| Refusal::of(&error))?;
    names.sort_unstable();
    names.retain(|name| name.as_str() >= marker);
    let next = names.get(most).cloned();
    names.truncate(most);
    let metadata = async |name: QueueName| -> Result<Option<(QueueName, Metadata)>, Error> {
        if !with_metadata {
            return Ok(Some((name, Metadata::new())));
        }
        match account.queues.metadata(&name).await {
            Ok(metadata) => Ok(Some((name, metadata))),
            // It was deleted meanwhile.
            Err(error) if error.kind() == ErrorKind::QueueNotFound => Ok(None),
            Err(error) => Err(error),
        }
    };
    let queues = stream::iter(names).map(metadata).buffered(AT_ONCE);
    let queues: Vec<_> = queues
        .try_collect()
        .await
        .map_err(|error| Refusal::of(&error))?;
    let mut xml = format!(
        "<EnumerationResults ServiceEndpoint=\"{}\">",
        escaped(endpoint)
    );
    for (name, value) in [
        ("Prefix", query.find("prefix")),
        ("Marker", query.find("marker")),
        ("MaxResults", query.find("maxresults")),
    ] {
        if let Some(value) = value {
            let _ = write!(xml, "<{name}>{}</{name}>", escaped(value));
        }
    }
    xml.push_str("<Queues>");
    for (name, metadata) in queues.into_iter().flatten() {
        let _ = write!(xml, "<Queue><Name>{name}</Name>");
        if with_metadata {
            xml.push_str("<Metadata>");
            for (name, value) in metadata.iter() {
                let _ = write!(xml, "<{name}>{}</{name}>", escaped(value));
            }
            xml.push_str("</Metadata>");
        }
        xml.push_str("</Queue>");
    }
    let next = next.map_or_else(String::new, |next| next.to_string());
    let _ = write!(
        xml,
        "</Queues><NextMarker>{next}</NextMarker></EnumerationResults>"
    );
    Ok(Answer::xml(StatusCode::OK, &xml))
}

pub(crate) async fn properties(account: &Account) -> Result<Answer, Refusal> {
    Ok(Answer::xml(
        StatusCode::OK,
        &settings::properties(account).await?,
    ))
}

pub(crate) async fn set_properties(account: &Account, body: &[u8]) -> Result<Answer, Refusal> {
    settings::set_properties(account, body).await?;
    Ok(Answer::empty(StatusCode::ACCEPTED))
}

/// The second region is the first one here, so it is never behind.
pub(crate) fn statistics(account: &Account, is_secondary: bool) -> Result<Answer, Refusal> {
    if !is_secondary {
        let detail = "statistics are asked of the second region, ACCOUNT-secondary";
        return Err(Refusal::with_detail(
            Code::InvalidQueryParameterValue,
            detail,
        ));
    }
    let now = date(account.clock.now());
    let xml = format!(
        "<StorageServiceStats><GeoReplication><Status>live</Status><LastSyncTime>{now}</LastSyncTime></GeoReplication></StorageServiceStats>"
    );
    Ok(Answer::xml(StatusCode::OK, &xml))
}
