//! Guards a web page that is only for the user of this machine, such as a dashboard with a credential behind it.
//!
//! Other programs, other users and pages from elsewhere can reach a port of this machine too. A [`Guard`] keeps other
//! programs, users and pages out:
//!
//! | from | by |
//! |---|---|
//! | other machines | listening on 127.0.0.1 only |
//! | other users of this machine | a login by a link that works once; then a cookie that no script can read; [`serve`] bounds connections |
//! | a page elsewhere whose name resolves to 127.0.0.1 (DNS rebinding) | a list of allowed `Host` headers |
//! | a page elsewhere, or on another port, that sends requests | `SameSite=Strict`; `Sec-Fetch-Site`; for each POST also `Origin` and a form token |
//! | markup in what the page shows | a Content Security Policy that runs only scripts of this origin |
//! | frames around the page, what it was linked from, guessed content types | response headers |
//!
//! The content and the size of a POST are up to the application.
//!
//! Browsers send cookies to all ports of a host. Do not open what another user of this machine serves at 127.0.0.1 in the
//! browser that is logged in: that server would receive the cookie.
//!
//! ```
//! use axum::{Extension, Router, routing::get};
//! use web_guard::{Guard, Session};
//!
//! async fn page(Extension(session): Extension<Session>) -> String {
//!     format!("post with the header x-form-token: {}", session.form_token())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! let (guard, listener) = Guard::bind(0).await?;
//! println!("open {}", guard.login_link());
//! let app = guard.protect(Router::new().route("/", get(page)));
//! # async fn signal() {}
//! web_guard::serve(listener, app, signal()).await;
//! # Ok(())
//! # }
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]

mod headers;
mod refusal;
mod serve;
mod sessions;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{COOKIE, HOST, ORIGIN, SET_COOKIE};
use axum::http::{HeaderMap, HeaderName, Method};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{Html, IntoResponse as _, Response};
use cookie::{Cookie, SameSite};
use tokio::net::TcpListener;

use refusal::Refusal;
use sessions::Sessions;

pub use serve::serve;
pub use sessions::Session;

/// The header of a POST that holds the [form token](Session::form_token).
pub const FORM_TOKEN: HeaderName = HeaderName::from_static("x-form-token");

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const LOGIN: &str = "/login";

/// Guards the page at one port of this machine. Clones guard the same page.
#[derive(Debug, Clone)]
pub struct Guard {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    port: u16,
    sessions: Sessions,
}

impl Guard {
    /// Listens at this port of 127.0.0.1, or at a free one if it is 0.
    ///
    /// # Errors
    /// If the port is in use or not allowed.
    pub async fn bind(port: u16) -> io::Result<(Self, TcpListener)> {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await?;
        let port = listener.local_addr()?.port();
        let sessions = Sessions::default();
        let shared = Arc::new(Shared { port, sessions });
        Ok((Self { shared }, listener))
    }

    /// Returns a new link that logs a browser in, once. Only the last few links are valid.
    #[must_use]
    pub fn login_link(&self) -> String {
        let token = self.shared.sessions.new_link();
        format!("{}{LOGIN}?token={token}", self.origin())
    }

    /// The origin of the page: `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn origin(&self) -> String {
        format!("http://127.0.0.1:{}", self.shared.port)
    }

    /// Returns a router that serves `pages` to browsers that are logged in, and refuses everything else. A handler gets
    /// the [`Session`] as an extension. The path `/login` is the guard's.
    pub fn protect(&self, pages: Router) -> Router {
        // Pages are a fallback, so that paths without a page are refused too.
        Router::new()
            .fallback_service(pages)
            .layer(from_fn_with_state(self.clone(), guarded))
    }

    fn check(&self, request: &Request) -> Result<Session, Refusal> {
        let headers = request.headers();
        let session = self.session(headers).ok_or(Refusal::NotLoggedIn)?;
        match headers.get(FETCH_SITE).map(|site| site.as_bytes()) {
            None | Some(b"same-origin") => {}
            Some(b"none") if request.method() != Method::POST => {}
            Some(_) => return Err(Refusal::OtherOrigin),
        }
        if request.method() == Method::POST {
            match headers.get(ORIGIN) {
                Some(origin) if !self.is_own(origin.as_bytes(), "http://") => {
                    return Err(Refusal::OtherOrigin);
                }
                None if !headers.contains_key(FETCH_SITE) => return Err(Refusal::NoOrigin),
                _ => {}
            }
            let token = headers.get(FORM_TOKEN).ok_or(Refusal::NoFormToken)?;
            if !session.has_form_token(token.as_bytes()) {
                return Err(Refusal::NoFormToken);
            }
        }
        Ok(session)
    }

    /// Refuses what is addressed to another host, and methods that no page needs.
    fn check_address(&self, request: &Request) -> Result<(), Refusal> {
        let mut hosts = request.headers().get_all(HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            return Err(Refusal::OtherHost);
        };
        let target = request.uri().authority();
        if !self.is_own(host.as_bytes(), "")
            || target.is_some_and(|target| !self.is_own(target.as_str().as_bytes(), ""))
        {
            return Err(Refusal::OtherHost);
        }
        match *request.method() {
            Method::GET | Method::HEAD | Method::POST => Ok(()),
            _ => Err(Refusal::Method),
        }
    }

    fn is_own(&self, found: &[u8], scheme: &str) -> bool {
        let port = self.shared.port;
        ["127.0.0.1", "localhost"]
            .iter()
            .any(|host| found == format!("{scheme}{host}:{port}").as_bytes())
    }

    /// Browsers send a cookie to all ports of a host, so its name has the port.
    fn cookie_name(&self) -> String {
        format!("session-{}", self.shared.port)
    }

    fn session(&self, headers: &HeaderMap) -> Option<Session> {
        let name = self.cookie_name();
        let texts = headers.get_all(COOKIE).iter();
        texts
            .filter_map(|text| text.to_str().ok())
            .flat_map(Cookie::split_parse)
            .filter_map(Result::ok)
            .filter(|cookie| cookie.name() == name)
            .find_map(|cookie| self.shared.sessions.find(cookie.value()))
    }

    fn log_in(&self, request: &Request) -> Result<Response, Refusal> {
        if request.method() != Method::GET {
            return Err(Refusal::Method);
        }
        let token = request.uri().query().unwrap_or_default();
        let token = token.strip_prefix("token=").unwrap_or_default();
        let id = self
            .shared
            .sessions
            .log_in(token)
            .ok_or(Refusal::UsedLink)?;
        let cookie = Cookie::build((self.cookie_name(), id))
            .http_only(true)
            .same_site(SameSite::Strict)
            .path("/");
        // The answer is no redirect: a link in another page would lead to a request without the strict cookie.
        let page = Html(r#"<!doctype html><meta http-equiv="refresh" content="0;url=/">"#);
        Ok(([(SET_COOKIE, cookie.to_string())], page).into_response())
    }
}

async fn guarded(State(guard): State<Guard>, mut request: Request, next: Next) -> Response {
    let answered = match guard.check_address(&request) {
        Err(refusal) => Err(refusal),
        Ok(()) if request.uri().path() == LOGIN => guard.log_in(&request),
        Ok(()) => match guard.check(&request) {
            Ok(session) => {
                request.extensions_mut().insert(session);
                Ok(next.run(request).await)
            }
            Err(refusal) => Err(refusal),
        },
    };
    let mut response = answered.unwrap_or_else(|refusal| {
        // Any page can cause refusals.
        tracing::debug!(%refusal, "refused a request");
        refusal.into_response()
    });
    headers::add(response.headers_mut());
    response
}
