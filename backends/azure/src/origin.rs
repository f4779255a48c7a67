//! Whose an answer is: that of the storage service, or of a program on the way to it, such as the page of a captive
//! portal or the error of a proxy.
//!
//! An answer not certainly the service's says nothing about what is stored: it is a failure with an unknown outcome,
//! and never a value, a missing object or an existing one.

use azure_core::http::Request;
use azure_core::http::headers::Headers as SdkHeaders;
use hyper::header::{CONTENT_RANGE, CONTENT_TYPE, HeaderMap};

use super::failure::REQUEST_ID;

/// Whether a reply is certainly the service's: it has the id that the service gave to the request, and is no web page.
/// A reply that refuses the request also [has a code](super::failure::ServiceError::is_uncoded).
pub(super) fn is_of_service(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(|kind| kind.as_bytes());
    let is_page = kind.is_some_and(|kind| {
        let start = kind.get(..9).unwrap_or_default();
        start.eq_ignore_ascii_case(b"text/html")
    });
    headers.contains_key(REQUEST_ID) && !is_page
}

/// Whether the body of a successful reply has the bytes that were asked for: a reply that was cut on its way may say a
/// length that fits.
pub(super) fn is_whole(request: &Request, headers: &HeaderMap, length: usize) -> bool {
    let Some(from) = asked_from(request.headers()) else {
        return true;
    };
    let Some(range) = headers.get(CONTENT_RANGE) else {
        // The reply is all of the object, which is not empty: of an empty object, the service has no range.
        return from == 0 && length > 0;
    };
    let range = range.to_str().ok().and_then(|range| {
        let (first, rest) = range.strip_prefix("bytes ")?.split_once('-')?;
        let (last, total) = rest.rsplit_once('/')?;
        Some((first, last, total.parse::<u64>().ok()?))
    });
    range.is_some_and(|(first, last, total)| match length as u64 {
        // An emulator replies with an empty range behind the end.
        0 => total <= from,
        length => {
            let last = last.parse::<u64>().ok();
            first.parse() == Ok(from) && last == (from + length).checked_sub(1)
        }
    })
}

/// Returns where the range begins that a request asks for.
fn asked_from(headers: &SdkHeaders) -> Option<u64> {
    let is_range = |name: &str| matches!(name, "range" | "x-ms-range");
    let (_, range) = headers.iter().find(|(name, _)| is_range(name.as_str()))?;
    let (from, _) = range.as_str().strip_prefix("bytes=")?.split_once('-')?;
    from.parse().ok()
}

#[cfg(feature = "object-store")]
pub use objects::AzureAnswers;

#[cfg(feature = "object-store")]
mod objects {
    use async_trait::async_trait;
    use azure_core::http::headers::Headers;
    use object_store::ClientOptions;
    use object_store::client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    };

    use super::is_of_service;
    use crate::failure::{ERROR_CODE, REQUEST_ID, ServiceError};

    /// An HTTP connector for the crate `object_store`, by which a container of blobs is reached: it passes on only what
    /// is certainly an answer of the storage service. The page of a captive portal, and the error of a proxy, are
    /// errors of the request. Without `AzureAnswers`, `object_store` takes any 404 for a missing object, and any 409
    /// for an object that exists.
    ///
    /// ```
    /// # #[derive(Debug)] struct ReqwestConnector;
    /// # impl object_store::client::HttpConnector for ReqwestConnector {
    /// #     fn connect(&self, _: &object_store::ClientOptions) -> object_store::Result<object_store::client::HttpClient> {
    /// #         Err(object_store::Error::NotImplemented { operation: String::new(), implementer: String::new() })
    /// #     }
    /// # }
    /// use queue_azure::AzureAnswers;
    ///
    /// let connector = AzureAnswers::of(ReqwestConnector); // that of `object_store`
    /// // MicrosoftAzureBuilder::from_env().with_http_connector(connector)
    /// # drop(connector);
    /// ```
    #[derive(Debug)]
    pub struct AzureAnswers<C>(C);

    impl<C> AzureAnswers<C> {
        /// Wraps a connector.
        pub fn of(connector: C) -> Self {
            Self(connector)
        }
    }

    impl<C: HttpConnector> HttpConnector for AzureAnswers<C> {
        fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
            self.0.connect(options).map(Checked).map(HttpClient::new)
        }
    }

    #[derive(Debug)]
    struct Checked(HttpClient);

    #[async_trait]
    impl HttpService for Checked {
        async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
            // Requests for tokens go elsewhere.
            let is_for_storage = request.headers().contains_key("x-ms-version");
            let response = self.0.execute(request).await?;
            if !is_for_storage {
                return Ok(response);
            }
            let (head, body) = response.into_parts();
            let status = head.status.as_u16();
            if is_of_service(&head.headers) {
                if !head.status.is_client_error() {
                    return Ok(HttpResponse::from_parts(head, body));
                }
                let body = body.bytes().await?;
                let mut headers = Headers::new();
                let code = head.headers.get(ERROR_CODE);
                if let Some(code) = code.and_then(|code| code.to_str().ok()) {
                    headers.insert(ERROR_CODE, code.to_owned());
                }
                if !ServiceError::read(status, Some(&headers), &body).is_uncoded() {
                    return Ok(HttpResponse::from_parts(head, body.into()));
                }
            }
            let problem = format!(
                "HTTP {status}, not from the storage service: no `{REQUEST_ID}`, no error code, or a page"
            );
            // Whoever asked tries again.
            Err(HttpError::new(
                HttpErrorKind::Unknown,
                std::io::Error::other(problem),
            ))
        }
    }
}

#[cfg(all(test, feature = "object-store"))]
mod tests {
    use async_trait::async_trait;
    use object_store::ClientOptions;
    use object_store::client::{
        HttpClient, HttpConnector, HttpError, HttpRequest, HttpRequestBody, HttpResponse,
        HttpResponseBody, HttpService,
    };

    use super::*;

    /// Answers with this status, these headers and this body.
    #[derive(Debug, Clone)]
    struct Answering(u16, &'static [(&'static str, &'static str)], &'static str);

    impl HttpConnector for Answering {
        fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
            Ok(HttpClient::new(self.clone()))
        }
    }

    #[async_trait]
    impl HttpService for Answering {
        async fn call(&self, _: HttpRequest) -> Result<HttpResponse, HttpError> {
            let mut response = HttpResponse::new(HttpResponseBody::from(self.2.to_owned()));
            *response.status_mut() = self.0.try_into().expect("a status");
            for (name, value) in self.1 {
                let value = value.parse().expect("a value");
                response.headers_mut().insert(*name, value);
            }
            Ok(response)
        }
    }

    #[tokio::test]
    async fn object_stores_get_answers_of_the_service_only() {
        const ID: (&str, &str) = ("x-ms-request-id", "7f");
        const XML: (&str, &str) = ("content-type", "application/xml");
        const HTML: (&str, &str) = ("content-type", "text/html");
        const CODE: (&str, &str) = ("x-ms-error-code", "BlobNotFound");
        const ERROR: &str = "<Error><Code>BlobNotFound</Code></Error>";
        const PAGE: &str = "<html><body>not found</body></html>";
        for (answer, is_passed, is_for_storage) in [
            (Answering(200, &[ID, XML], ""), true, true),
            (Answering(200, &[ID], ""), true, true),
            (Answering(200, &[XML], ""), false, true),
            (Answering(200, &[ID, HTML], ""), false, true),
            (Answering(200, &[], ""), false, true),
            (Answering(404, &[XML], ERROR), true, false),
            (Answering(404, &[ID, CODE], ""), true, true),
            (Answering(404, &[ID, XML], ERROR), true, true),
            (Answering(404, &[ID], ""), false, true),
            (Answering(404, &[ID], PAGE), false, true),
            (
                Answering(409, &[ID, ("x-ms-error-code", "<b>")], ""),
                false,
                true,
            ),
            (Answering(404, &[CODE], ERROR), false, true),
            (Answering(304, &[ID], ""), true, true),
            (Answering(503, &[ID], ""), true, true),
        ] {
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            if is_for_storage {
                let version = "2023-11-03".parse().expect("a value");
                request.headers_mut().insert("x-ms-version", version);
            }
            let connector = AzureAnswers::of(answer.clone());
            let client = connector.connect(&ClientOptions::new()).expect("connects");
            let answered = client.execute(request).await;
            assert_eq!(answered.is_ok(), is_passed, "{answer:?}");
            if let Ok(answered) = answered {
                let body = answered.into_body().bytes().await.expect("a body");
                assert_eq!(body, answer.2, "{answer:?}");
            }
        }
    }
}
