use std::time::Duration;

use object_store::azure::{AzureCredentialProvider, MicrosoftAzureBuilder};
use tokio::time::timeout;

use crate::object_error::describe;

/// Who may give a token, by the names that `object_store` has for them, and how long they may take:
/// the address of a managed identity answers at once where there is one, and often never elsewhere.
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

/// A longer explanation is cut here.
const MAX_REASON: usize = 300;

/// The first who gives a token, or why none does.
pub(super) async fn credentials(
    account: &MicrosoftAzureBuilder,
) -> Result<AzureCredentialProvider, String> {
    let account = from_environment(account.clone()).with_container_name("none");
    let mut failed = Vec::new();
    for (name, kind, patience) in SOURCES {
        let opened = account.clone().with_credential_type(kind).build();
        let reason = match opened {
            Ok(store) => match timeout(patience, store.credentials().get_credential()).await {
                Ok(Ok(_)) => return Ok(store.credentials().clone()),
                Ok(Err(error)) => reason(&error),
                Err(_) => format!("no answer within {patience:?}"),
            },
            Err(error) => reason(&error),
        };
        failed.push(format!("{name}: {reason}"));
    }
    Err(failed.join("; "))
}

/// What the cloud's hosts and the official clients put into the environment.
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
    let told = describe(error);
    let words: Vec<&str> = told.split_whitespace().collect();
    words.join(" ").chars().take(MAX_REASON).collect()
}
