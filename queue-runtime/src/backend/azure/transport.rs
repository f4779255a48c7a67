//! The last station of the pipeline, where a request gets its secrets and goes out.
//!
//! Whatever stands before it (the SDK's logging, instrumentation and errors) sees a placeholder for
//! the pop receipt, no signature and no `authorization`; whatever comes back has its receipt in a
//! header that the SDK does not log, and errors without a URL.

use std::error::Error as _;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use azure_core::error::ErrorKind;
use azure_core::http::headers::{HeaderName, HeaderValue, Headers};
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{AsyncRawResponse, Body, Context, Request, Url};
use queue_core::Clock;
use queue_core::backend::PopReceipt;

use super::account::Credential;
use super::call::Companion;
use super::clients::Clients;

/// The header that brings an update's new receipt, under a name that no log lists as harmless.
pub(super) const NEW_RECEIPT: &str = "x-held-back";

/// The longest reply that is read: 32 messages of 64 KiB, each character escaped.
const MAX_REPLY: usize = 16 * 1024 * 1024;

pub(super) struct Transport {
    clients: Clients,
    credential: Credential,
    clock: Arc<dyn Clock>,
}

/// A request that brought no reply. It holds no URL.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum TransportFailure {
    /// It was never sent.
    #[error("{0}")]
    Connect(String),
    /// It may have been sent, and perhaps carried out.
    #[error("{0}")]
    Broken(String),
    #[error("the reply is longer than {MAX_REPLY} bytes")]
    TooLong,
}

impl Transport {
    pub(super) fn new(credential: Credential, clients: Clients, clock: Arc<dyn Clock>) -> Self {
        Self {
            clients,
            credential,
            clock,
        }
    }

    /// The request as it goes out: with its receipt and signature.
    fn finish(
        &self,
        client: &reqwest::Client,
        request: &Request,
        receipt: Option<&PopReceipt>,
    ) -> Result<reqwest::Request, TransportFailure> {
        let mut url = request.url().clone();
        if let Some(receipt) = receipt {
            put_receipt(&mut url, receipt);
        }
        let Body::Bytes(body) = request.body().clone() else {
            return Err(TransportFailure::Connect("the body is a stream".to_owned()));
        };
        let verb = request.method().as_str();
        let mut headers = request.headers().clone();
        let date = self.clock.now().strftime("%a, %d %b %Y %H:%M:%S GMT");
        headers.insert("x-ms-date", date.to_string());
        match &self.credential {
            Credential::Key(key) => {
                let authorization = key.authorization(verb, &url, &headers, body.len());
                headers.insert("authorization", authorization);
            }
            Credential::Signature(signature) => {
                let query = match url.query() {
                    Some(query) if !query.is_empty() => {
                        format!("{query}&{}", signature.reveal())
                    }
                    _ => signature.reveal().to_owned(),
                };
                url.set_query(Some(&query));
            }
            Credential::Entra => {}
        }
        let verb = reqwest::Method::from_bytes(verb.as_bytes())
            .map_err(|_| TransportFailure::Connect("the method is not allowed".to_owned()))?;
        let mut outgoing = client.request(verb, url).body(body);
        for (name, value) in headers.iter() {
            outgoing = outgoing.header(name.as_str(), value.as_str());
        }
        outgoing
            .build()
            .map_err(|error| TransportFailure::Connect(cause(error)))
    }

    async fn exchange(
        &self,
        request: &Request,
        companion: Option<&Companion>,
    ) -> Result<AsyncRawResponse, TransportFailure> {
        let receipt = companion.and_then(|companion| companion.receipt.as_ref());
        let client = self.clients.here().map_err(failed)?;
        let outgoing = self.finish(&client, request, receipt)?;
        if let Some(companion) = companion {
            companion.mark_sent();
        }
        let mut reply = client.execute(outgoing).await.map_err(failed)?;
        let status = reply.status().as_u16();
        let headers = held_back(reply.headers());
        let mut body = Vec::new();
        while let Some(chunk) = reply.chunk().await.map_err(failed)? {
            if body.len() + chunk.len() > MAX_REPLY {
                return Err(TransportFailure::TooLong);
            }
            body.extend_from_slice(&chunk);
        }
        Ok(AsyncRawResponse::from_bytes(status.into(), headers, body))
    }
}

#[async_trait]
impl Policy for Transport {
    async fn send(
        &self,
        context: &Context,
        request: &mut Request,
        _next: &[Arc<dyn Policy>],
    ) -> PolicyResult {
        let companion = context.value::<Arc<Companion>>().map(Arc::as_ref);
        self.exchange(request, companion).await.map_err(|failure| {
            let kind = match &failure {
                TransportFailure::Connect(_) => ErrorKind::Connection,
                _ => ErrorKind::Io,
            };
            azure_core::Error::new(kind, failure)
        })
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport")
            .field("credential", &self.credential)
            .finish_non_exhaustive()
    }
}

fn put_receipt(url: &mut Url, receipt: &PopReceipt) {
    let pairs: Vec<_> = url.query_pairs().into_owned().collect();
    let mut query = url.query_pairs_mut();
    query.clear();
    for (name, value) in &pairs {
        let value = match name.as_str() {
            "popreceipt" => receipt.reveal(),
            _ => value,
        };
        query.append_pair(name, value);
    }
}

/// The reply's headers, with the receipt under another name. Values that may be part of a URL or of a
/// signature are left out: none of those that are read looks like one.
fn held_back(headers: &reqwest::header::HeaderMap) -> Headers {
    let mut held = Headers::new();
    for (name, value) in headers {
        let Ok(value) = value.to_str() else { continue };
        let name = match name.as_str() {
            "x-ms-popreceipt" => NEW_RECEIPT.to_owned(),
            name if !name.starts_with("x-ms-meta-") && value.contains(['=', '?']) => continue,
            name => name.to_owned(),
        };
        held.insert(HeaderName::from(name), HeaderValue::from(value.to_owned()));
    }
    held
}

fn failed(error: reqwest::Error) -> TransportFailure {
    if error.is_connect() || error.is_builder() {
        TransportFailure::Connect(cause(error))
    } else {
        TransportFailure::Broken(cause(error))
    }
}

/// What the causes of an error say. The error itself would name the URL.
fn cause(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut told = Vec::new();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if told.last() != Some(&text) {
            told.push(text);
        }
        next = cause.source();
    }
    match told.is_empty() {
        true => error.to_string(),
        false => told.join(": "),
    }
}
