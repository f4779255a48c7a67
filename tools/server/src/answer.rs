//! The answers, and refusals with their codes.

use std::fmt::Write as _;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::Full;
use jiff::Timestamp;
use queue_azure_wire::code::Code;
use queue_azure_wire::xml::{escaped, to_http_date};
use queue_core::{Error, ErrorKind};

/// An answer before its common headers.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

const DECLARATION: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?>";

impl Answer {
    pub(crate) fn empty(status: StatusCode) -> Self {
        Self {
            status,
            headers: HeaderMap::new(),
            body: Vec::new(),
        }
    }

    /// An answer with this XML.
    pub(crate) fn xml(status: StatusCode, xml: &str) -> Self {
        let mut answer = Self::empty(status);
        answer.set(CONTENT_TYPE, "application/xml");
        answer.body = [DECLARATION, xml].concat().into_bytes();
        answer
    }

    /// Sets a header, unless its value cannot be one.
    pub(crate) fn set(&mut self, name: HeaderName, value: &str) {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.insert(name, value);
        }
    }

    pub(crate) fn into_response(self, is_head: bool) -> Response<Full<Bytes>> {
        let body = if is_head { Vec::new() } else { self.body };
        let mut response = Response::new(Full::new(body.into()));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }
}

/// Why a request is not carried out.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    /// What is wrong with this request, for whoever sends it.
    detail: Option<String>,
    /// The name and the value of a parameter that is wrong.
    parameter: Option<(String, String)>,
}

impl From<Code> for Refusal {
    fn from(code: Code) -> Self {
        Self {
            code,
            detail: None,
            parameter: None,
        }
    }
}

impl Refusal {
    pub(crate) fn with_detail(code: Code, detail: impl Into<String>) -> Self {
        Self {
            detail: Some(detail.into()),
            ..code.into()
        }
    }

    pub(crate) fn of_parameter(code: Code, name: &str, value: &str) -> Self {
        Self {
            parameter: Some((name.to_owned(), value.to_owned())),
            ..code.into()
        }
    }

    /// Why the engine does not carry a request out.
    pub(crate) fn of(error: &Error) -> Self {
        let code = match error.kind() {
            ErrorKind::QueueNotFound => Code::QueueNotFound,
            // A receipt that no longer matches says that another has the message, or that it is gone.
            ErrorKind::MessageNotFound | ErrorKind::ReceiptMismatch => Code::MessageNotFound,
            ErrorKind::QueueExists => Code::QueueAlreadyExists,
            ErrorKind::QueueBeingDeleted => Code::QueueBeingDeleted,
            ErrorKind::TooLarge => Code::RequestBodyTooLarge,
            ErrorKind::InvalidInput => Code::OutOfRangeInput,
            ErrorKind::Throttled | ErrorKind::Timeout => Code::ServerBusy,
            _ => Code::InternalError,
        };
        match code {
            // The text may quote what the storage is, which is the operator's.
            Code::InternalError | Code::ServerBusy => {
                tracing::warn!(%error, "the engine did not carry a request out");
                code.into()
            }
            _ => Self::with_detail(code, error.to_string()),
        }
    }

    pub(crate) fn into_answer(self, request: &str) -> Answer {
        let time = Timestamp::now();
        let mut xml = String::from("<Error><Code>");
        let (code, message) = (self.code.as_str(), self.code.message());
        let _ = write!(
            xml,
            "{code}</Code><Message>{message}\nRequestId:{request}\nTime:{time}</Message>"
        );
        if let Some(detail) = &self.detail {
            let name = match self.code.status() {
                StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => "AuthenticationErrorDetail",
                _ => "Reason",
            };
            let _ = write!(xml, "<{name}>{}</{name}>", escaped(detail));
        }
        if let Some((name, value)) = &self.parameter {
            let (name, value) = (escaped(name), escaped(value));
            let _ = write!(
                xml,
                "<QueryParameterName>{name}</QueryParameterName><QueryParameterValue>{value}</QueryParameterValue>"
            );
        }
        xml.push_str("</Error>");
        let mut answer = Answer::xml(self.code.status(), &xml);
        answer.set(HeaderName::from_static("x-ms-error-code"), code);
        match self.code {
            Code::ServerBusy => answer.set(RETRY_AFTER, "1"),
            Code::NoAuthenticationInformation | Code::InvalidAuthenticationInfo => {
                answer.set(WWW_AUTHENTICATE, "SharedKey");
            }
            _ => {}
        }
        answer
    }
}

/// A date as in headers and lists.
pub(crate) fn date(at: Timestamp) -> String {
    to_http_date(at)
}
