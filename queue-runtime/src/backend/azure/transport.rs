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
use azure_core::http::headers::{HeaderName as SdkName, HeaderValue as SdkValue, Headers};
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{AsyncRawResponse, Body, Context, Request, Url};
use jiff::fmt::rfc2822::DateTimePrinter;
use queue_core::Clock;
use queue_core::backend::PopReceipt;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};

use super::account::Credential;
use super::call::Companion;
use super::clients::Clients;

/// The header that brings an update's new receipt, under a name that no log lists as harmless.
pub(super) const NEW_RECEIPT: &str = "x-held-back";

/// What every reply of the service has.
const REQUEST_ID: &str = "x-ms-request-id";

/// The longest reply that is read: 32 messages of 64 KiB, each character escaped.
const MAX_REPLY: usize = 16 * 1024 * 1024;

/// The headers of replies that are read, besides metadata and the receipt.
const READ: [&str; 8] = [
    "date",
    "retry-after",
    "retry-after-ms",
    "x-ms-approximate-messages-count",
    "x-ms-error-code",
    REQUEST_ID,
    "x-ms-retry-after-ms",
    "x-ms-time-next-visible",
];

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
    /// Something in between said that it was done.
    #[error("the reply is not from Queue Storage itself: it has no `{REQUEST_ID}`")]
    Foreign,
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
        let verb = reqwest::Method::from_bytes(request.method().as_str().as_bytes())
            .map_err(|_| TransportFailure::Connect("the method is not allowed".to_owned()))?;
        let mut headers = headers(request)?;
        let date = DateTimePrinter::new().timestamp_to_rfc9110_string(&self.clock.now());
        let date = date.map_err(|error| TransportFailure::Connect(error.to_string()))?;
        headers.insert("x-ms-date", header(&date)?);
        match &self.credential {
            Credential::Key(key) => {
                let authorization = key.authorization(&verb, &url, &headers, body.len());
                let mut authorization = header(&authorization)?;
                authorization.set_sensitive(true);
                headers.insert(AUTHORIZATION, authorization);
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
        let mut outgoing = reqwest::Request::new(verb, url);
        *outgoing.headers_mut() = headers;
        *outgoing.body_mut() = Some(body.into());
        Ok(outgoing)
    }

    async fn exchange(
        &self,
        request: &Request,
        companion: Option<&Companion>,
    ) -> Result<AsyncRawResponse, TransportFailure> {
        let receipt = companion.and_then(|companion| companion.receipt.as_ref());
        let client = self.clients.here().map_err(failed)?;
        let outgoing = self.finish(request, receipt)?;
        if let Some(companion) = companion {
            companion.mark_sent();
        }
        let mut reply = client.execute(outgoing).await.map_err(failed)?;
        let status = reply.status().as_u16();
        let headers = held_back(reply.headers());
        let reply_is_foreign =
            reply.status().is_success() && !reply.headers().contains_key(REQUEST_ID);
        let (mut chunks, mut length) = (Vec::new(), 0);
        while let Some(chunk) = reply.chunk().await.map_err(failed)? {
            length += chunk.len();
            if length > MAX_REPLY {
                return Err(TransportFailure::TooLong);
            }
            chunks.push(chunk);
        }
        let body = match chunks.as_mut_slice() {
            [whole] => std::mem::take(whole),
            chunks => chunks.concat().into(),
        };
        if reply_is_foreign {
            return Err(TransportFailure::Foreign);
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

fn headers(request: &Request) -> Result<HeaderMap, TransportFailure> {
    let mut headers = HeaderMap::new();
    for (name, value) in request.headers().iter() {
        let name = HeaderName::from_bytes(name.as_str().as_bytes())
            .map_err(|_| TransportFailure::Connect("a header is not allowed".to_owned()))?;
        let mut value = header(value.as_str())?;
        value.set_sensitive(name == AUTHORIZATION);
        headers.insert(name, value);
    }
    Ok(headers)
}

fn header(value: &str) -> Result<HeaderValue, TransportFailure> {
    HeaderValue::from_str(value)
        .map_err(|_| TransportFailure::Connect("a header is not allowed".to_owned()))
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

/// The reply's headers that are read, with the receipt under another name. Values that may be part of a
/// URL or of a signature are left out: none of those that are read looks like one.
fn held_back(headers: &HeaderMap) -> Headers {
    let mut held = Headers::new();
    for (name, value) in headers {
        let Ok(value) = value.to_str() else { continue };
        let name = name.as_str();
        let read = READ.iter().find(|read| **read == name);
        let name = match (name, read) {
            ("x-ms-popreceipt", _) => SdkName::from_static(NEW_RECEIPT),
            (_, Some(read)) if !value.contains(['=', '?']) => SdkName::from_static(read),
            (name, None) if name.starts_with("x-ms-meta-") => SdkName::from(name.to_owned()),
            _ => continue,
        };
        held.insert(name, SdkValue::from(value.to_owned()));
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
