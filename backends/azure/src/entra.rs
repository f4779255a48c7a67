//! Tokens of Microsoft Entra ID, from the first of several credentials that provides one.

use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use azure_core::error::ErrorKind;
use azure_identity::{
    AzureCliCredential, AzureDeveloperCliCredential, ManagedIdentityCredential,
    ManagedIdentityCredentialOptions, UserAssignedId, WorkloadIdentityCredential,
};
use queue_core::Clock;
use queue_core::internal::debug_fields;

use super::failure::Failure;

const SCOPE: &str = "https://storage.azure.com/.default";

/// The timeout for a managed identity, whose endpoint answers immediately where it exists, and often never
/// where it does not.
const MANAGED_IDENTITY_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum length of an error text, in characters.
const MAX_REASON: usize = 300;

/// Tries workload identity, managed identity and the developer tools, in this order, and keeps using the
/// first that provided a token.
pub(super) struct Entra {
    sources: Vec<Source>,
    chosen: AtomicUsize,
    clock: Arc<dyn Clock>,
}

struct Source {
    name: &'static str,
    credential: Result<Arc<dyn TokenCredential>, String>,
    timeout: Duration,
}

const NONE_YET: usize = usize::MAX;

impl Entra {
    pub(super) fn new(clock: Arc<dyn Clock>, timeout: Duration) -> Self {
        let workload = WorkloadIdentityCredential::new(None);
        let managed = ManagedIdentityCredential::new(Some(ManagedIdentityCredentialOptions {
            user_assigned_id: std::env::var("AZURE_CLIENT_ID")
                .ok()
                .filter(|id| !id.is_empty())
                .map(UserAssignedId::ClientId),
            ..ManagedIdentityCredentialOptions::default()
        }));
        let cli = AzureCliCredential::new(None);
        let developer_cli = AzureDeveloperCliCredential::new(None);
        let source = |name, credential, timeout| Source {
            name,
            credential,
            timeout,
        };
        let sources = vec![
            source("workload identity", erased(workload), timeout),
            source(
                "managed identity",
                erased(managed),
                MANAGED_IDENTITY_TIMEOUT,
            ),
            source("Azure CLI", erased(cli), timeout),
            source("Azure Developer CLI", erased(developer_cli), timeout),
        ];
        Self::of(sources, clock)
    }

    fn of(sources: Vec<Source>, clock: Arc<dyn Clock>) -> Self {
        Self {
            sources,
            chosen: AtomicUsize::new(NONE_YET),
            clock,
        }
    }

    /// Gets a first token, so that opening the account fails if there is no credential.
    pub(super) async fn check(&self) -> Result<(), Failure> {
        let token = self.get_token(&[SCOPE], None).await;
        token.map(drop).map_err(Failure::from_sdk)
    }

    async fn ask(
        &self,
        source: &Source,
        scopes: &[&str],
        options: Option<TokenRequestOptions<'_>>,
    ) -> Result<AccessToken, String> {
        let credential = source.credential.as_ref().map_err(String::clone)?;
        let timeout = source.timeout;
        tokio::select! {
            biased;
            token = credential.get_token(scopes, options) => token.map_err(|error| reason(&error)),
            () = self.clock.sleep(timeout) => Err(format!("no answer within {timeout:?}")),
        }
    }
}

#[async_trait]
impl TokenCredential for Entra {
    async fn get_token(
        &self,
        scopes: &[&str],
        options: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        if let Some(source) = self.sources.get(self.chosen.load(Relaxed)) {
            let token = self.ask(source, scopes, options).await;
            return token.map_err(|reason| denied(&[(source.name, reason)]));
        }
        let mut failed = Vec::new();
        for (index, source) in self.sources.iter().enumerate() {
            match self.ask(source, scopes, options.clone()).await {
                Ok(token) => {
                    self.chosen.store(index, Relaxed);
                    return Ok(token);
                }
                Err(reason) => failed.push((source.name, reason)),
            }
        }
        Err(denied(&failed))
    }
}

debug_fields!(Entra {});

fn erased<C: TokenCredential + 'static>(
    credential: azure_core::Result<Arc<C>>,
) -> Result<Arc<dyn TokenCredential>, String> {
    match credential {
        Ok(credential) => Ok(credential),
        Err(error) => Err(reason(&error)),
    }
}

fn denied(failed: &[(&str, String)]) -> azure_core::Error {
    let text: Vec<String> = failed
        .iter()
        .map(|(name, reason)| format!("{name}: {reason}"))
        .collect();
    let text = format!(
        "no credential of Entra ID provided a token: {}",
        text.join("; ")
    );
    azure_core::Error::with_message(ErrorKind::Credential, text)
}

/// Returns the error text on one line, truncated, and without words long enough to be tokens.
fn reason(error: &azure_core::Error) -> String {
    let mut text = error.to_string();
    if let Some((before, _)) = text.split_once("To troubleshoot") {
        text = before.trim_end().to_owned();
    }
    let cause = error.source().map(ToString::to_string);
    if let Some(cause) = cause.filter(|cause| !text.contains(cause.as_str())) {
        text.push_str(": ");
        text.push_str(&cause);
    }
    let words: Vec<&str> = text
        .split_whitespace()
        .map(|word| if word.len() > 100 { "…" } else { word })
        .collect();
    let text = words.join(" ");
    match text.char_indices().nth(MAX_REASON) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests;
