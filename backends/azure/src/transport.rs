//! The last step of the SDK's pipeline, which adds secrets to a request and sends it.
//!
//! The steps before the transport (the SDK's logging, instrumentation and errors) see a placeholder instead of the
//! pop receipt, no signature and no `authorization`. In a reply, the SDK sees the pop receipt under a header name that
//! it does not log, and errors without a URL.

use std::borrow::Cow;
use std::error::Error;
use std::sync::Arc;

use async_trait::async_trait;
use azure_core::error::ErrorKind;
use azure_core::http::headers::{HeaderName as SdkName, HeaderValue as SdkValue, Headers};
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{AsyncRawResponse, Body, Context, Request, Url};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Uri};
use hyper_util::client::legacy;
use jiff::fmt::rfc2822::DateTimePrinter;
use queue_core::Clock;
use queue_core::backend::PopReceipt;
use queue_core::internal::{debug_fields, error_chain};

use super::account::Credential;
use super::call::{CallState, NEW_RECEIPT_HEADER};
use super::clients::Clients;
use super::failure::{ERROR_CODE, Failure, MAX_REPLY, REQUEST_ID, ServiceError};
use super::origin::{is_of_service, is_whole};

/// The headers of replies that are passed on, besides metadata and the receipt.
const READ: [&str; 11] = [
    "content-length",
    "date",
    "etag",
    "last-modified",
    "retry-after",
    "retry-after-ms",
    "x-ms-approximate-messages-count",
    ERROR_CODE,
    REQUEST_ID,
    "x-ms-retry-after-ms",
    "x-ms-time-next-visible",
];

pub(super) struct Transport {
    clients: Clients,
    credential: Arc<Credential>,
    clock: Arc<dyn Clock>,
}

impl Transport {
    pub(super) fn new(
        credential: Arc<Credential>,
        clients: Clients,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            clients,
            credential,
            clock,
        }
    }

    /// Returns the request to send, with its receipt and signature.
    fn finish(
        &self,
        request: &Request,
        receipt: Option<&PopReceipt>,
    ) -> Result<hyper::Request<Full<Bytes>>, Failure> {
        let mut url = Cow::Borrowed(request.url());
        if let Some(receipt) = receipt {
            put_receipt(url.to_mut(), receipt);
        }
        let Body::Bytes(body) = request.body().clone() else {
            return Err(Failure::Connect("its body is a stream".to_owned()));
        };
        let verb = Method::from_bytes(request.method().as_str().as_bytes())
            .map_err(|error| unfit("its method", &error))?;
        let mut headers = headers(request)?;
        let mut target = url.as_str().to_owned();
        match &*self.credential {
            Credential::Key(key) => {
                headers.insert("x-ms-date", self.date()?);
                let authorization = key.authorization(&verb, &url, &headers, body.len());
                let mut authorization = header("authorization", &authorization)?;
                authorization.set_sensitive(true);
                headers.insert(AUTHORIZATION, authorization);
            }
            // A signature has its own expiry; the service ignores the date.
            Credential::Signature(signature) => {
                target.push(if url.query().is_some() { '&' } else { '?' });
                target.push_str(signature.secret());
            }
            Credential::Entra => {
                headers.insert("x-ms-date", self.date()?);
            }
        }
        let mut outgoing = hyper::Request::new(Full::new(body));
        *outgoing.method_mut() = verb;
        let uri = Uri::try_from(target);
        *outgoing.uri_mut() = uri.map_err(|error| unfit("its URL", &error))?;
        *outgoing.headers_mut() = headers;
        Ok(outgoing)
    }

    fn date(&self) -> Result<HeaderValue, Failure> {
        let date = DateTimePrinter::new().timestamp_to_rfc9110_string(&self.clock.now());
        let date = date.map_err(|error| Failure::Connect(error.to_string()))?;
        header("x-ms-date", &date)
    }

    async fn exchange(
        &self,
        request: &Request,
        state: Option<&CallState>,
    ) -> Result<AsyncRawResponse, Failure> {
        let receipt = state.and_then(|state| state.receipt.as_ref());
        let outgoing = self.finish(request, receipt)?;
        if let Some(state) = state {
            state.mark_sent();
        }
        let reply = self.clients.current().request(outgoing).await;
        let (head, body) = reply.map_err(failed)?.into_parts();
        let (status, headers) = (head.status.as_u16(), visible_headers(&head.headers));
        if !is_of_service(&head.headers) {
            return Err(Failure::Foreign(Box::new(ServiceError::foreign(
                status, &headers,
            ))));
        }
        let body = Limited::new(body, MAX_REPLY).collect().await;
        let body = body.map_err(cut_off)?.to_bytes();
        if head.status.is_success() && !is_whole(request, &head.headers, body.len()) {
            return Err(Failure::Broken("the reply was cut on its way".to_owned()));
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
        let state = context.value::<Arc<CallState>>().map(Arc::as_ref);
        self.exchange(request, state).await.map_err(|failure| {
            let kind = match &failure {
                Failure::Connect(_) => ErrorKind::Connection,
                _ => ErrorKind::Io,
            };
            azure_core::Error::new(kind, failure)
        })
    }
}

debug_fields!(Transport { credential });

fn headers(request: &Request) -> Result<HeaderMap, Failure> {
    let mut headers = HeaderMap::new();
    for (name, value) in request.headers().iter() {
        let name = HeaderName::from_bytes(name.as_str().as_bytes())
            .map_err(|error| unfit(&format!("the header `{}`", name.as_str()), &error))?;
        let mut value = header(name.as_str(), value.as_str())?;
        value.set_sensitive(name == AUTHORIZATION);
        headers.insert(name, value);
    }
    Ok(headers)
}

fn header(name: &str, value: &str) -> Result<HeaderValue, Failure> {
    let value = HeaderValue::from_str(value);
    value.map_err(|error| unfit(&format!("the value of the header `{name}`"), &error))
}

/// Returns the error of a request that cannot be sent. Errors of `http` quote nothing.
fn unfit(part: &str, error: &dyn Error) -> Failure {
    Failure::Connect(format!("{part} is not allowed: {error}"))
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

/// Returns the headers to pass on, with the receipt under another name. Leaves out values that may be part
/// of a URL or signature, which valid values never resemble.
fn visible_headers(headers: &HeaderMap) -> Headers {
    let mut held = Headers::new();
    for (name, value) in headers {
        let Ok(value) = value.to_str() else { continue };
        let name = name.as_str();
        let read = READ.iter().find(|read| **read == name);
        let name = match (name, read) {
            ("x-ms-popreceipt", _) => SdkName::from_static(NEW_RECEIPT_HEADER),
            (_, Some(read)) if !value.contains(['=', '?']) => SdkName::from_static(read),
            (name, None) if name.starts_with("x-ms-meta-") => SdkName::from(name.to_owned()),
            _ => continue,
        };
        held.insert(name, SdkValue::from(value.to_owned()));
    }
    held
}

fn failed(error: legacy::Error) -> Failure {
    let cause = error
        .source()
        .map_or_else(|| error.to_string(), error_chain);
    if error.is_connect() {
        Failure::Connect(cause)
    } else {
        Failure::Broken(cause)
    }
}

/// Converts an error while reading a reply's body.
fn cut_off(error: Box<dyn Error + Send + Sync>) -> Failure {
    if error.is::<LengthLimitError>() {
        Failure::TooLong
    } else {
        Failure::Broken(error_chain(&*error))
    }
}
