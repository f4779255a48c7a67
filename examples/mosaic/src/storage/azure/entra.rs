use std::time::Duration;

use object_store::azure::{AzureCredentialProvider, MicrosoftAzureBuilder};
use tokio::time::timeout;

use crate::storage::object_error::describe;

/// The sources of tokens, with their names in `object_store` and their timeouts: the endpoint of
/// managed identities responds at once where there is one, and often never elsewhere.
const SOURCES: [(&str, &str, Duration); 3] = [
    (
        "workload identity",
        "workload_identity",
        Duration::from_secs(60),
    ),
    (
        "managed identity",
        "managed_identity",
        Duration::from_secs(5),
    ),
    ("Azure CLI", "azure_cli", Duration::from_secs(60)),
];

/// The maximum length of a reason, in characters.
const MAX_REASON: usize = 300;

/// Returns the first credentials that yield a token, or the reason why each source failed.
pub(super) async fn credentials(
    account: &MicrosoftAzureBuilder,
) -> Result<AzureCredentialProvider, String> {
    let account = from_environment(account.clone()).with_container_name("none");
    let mut failed = Vec::new();
    for (name, kind, limit) in SOURCES {
        let opened = account.clone().with_credential_type(kind).build();
        let reason = match opened {
            Ok(store) => match timeout(limit, store.credentials().get_credential()).await {
                Ok(Ok(_)) => return Ok(store.credentials().clone()),
                Ok(Err(error)) => reason(&error),
                Err(_) => format!("no response within {limit:?}"),
            },
            Err(error) => reason(&error),
        };
        failed.push(format!("{name}: {reason}"));
    }
    Err(failed.join("; "))
}

/// Applies the environment variables that Azure's hosts and SDKs use.
fn from_environment(mut account: MicrosoftAzureBuilder) -> MicrosoftAzureBuilder {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    if let Some(id) = set("AZURE_CLIENT_ID") {
        account = account.with_client_id(id);
    }
    if let Some(id) = set("AZURE_TENANT_ID") {
        account = account.with_tenant_id(id);
    }
    if let Some(path) = set("AZURE_FEDERATED_TOKEN_FILE") {
        account = account.with_federated_token_file(path);
    }
    if let Some(host) = set("AZURE_AUTHORITY_HOST") {
        account = account.with_authority_host(host);
    }
    if let Some(endpoint) = set("IDENTITY_ENDPOINT") {
        account = account.with_msi_endpoint(endpoint);
    }
    account
}

fn reason(error: &object_store::Error) -> String {
    let text = describe(error);
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").chars().take(MAX_REASON).collect()
}
