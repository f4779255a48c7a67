use std::fmt;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    OtherHost,
    Method,
    UsedLink,
    NotLoggedIn,
    OtherOrigin,
    NoOrigin,
    NoFormToken,
}

impl Refusal {
    fn status(self) -> StatusCode {
        match self {
            Self::OtherHost => StatusCode::MISDIRECTED_REQUEST,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::NotLoggedIn => StatusCode::UNAUTHORIZED,
            Self::UsedLink | Self::OtherOrigin | Self::NoOrigin | Self::NoFormToken => {
                StatusCode::FORBIDDEN
            }
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherHost => "the request is for another host; open the page by the link that the program printed",
            Self::Method => "the method is not allowed; GET, HEAD and POST are",
            Self::UsedLink => {
                "the link was used before, or is not valid any more; a browser that is logged in can make another, and \
                 the program prints one when it starts"
            }
            Self::NotLoggedIn => {
                "this browser is not logged in; open the link that the program printed when it started"
            }
            Self::OtherOrigin => "the request comes from a page of another origin",
            Self::NoOrigin => {
                "the request has neither the header `Origin` nor `Sec-Fetch-Site`, so where it comes from is not known"
            }
            Self::NoFormToken => {
                "the request does not have the form token of this session in the header `x-form-token`; reload the page"
            }
        })
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status(), self.to_string()).into_response()
    }
}
