//! Links that log in, and the sessions of the browsers that used them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use subtle::ConstantTimeEq as _;

/// The greatest number of links that were not used; the oldest is dropped for another.
const MAX_LINKS: usize = 8;
/// The greatest number of sessions; the oldest is logged out for another.
const MAX_SESSIONS: usize = 32;

/// A browser that is logged in.
#[derive(Clone)]
pub struct Session {
    id: String,
    form_token: String,
}

#[derive(Default)]
pub(crate) struct Sessions {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    links: VecDeque<String>,
    sessions: VecDeque<Session>,
}

impl Session {
    /// A secret of this session for its page, which no page of another origin can read. Each POST must have the form
    /// token in the header [`FORM_TOKEN`](crate::FORM_TOKEN).
    #[must_use]
    pub fn form_token(&self) -> &str {
        &self.form_token
    }

    pub(crate) fn has_form_token(&self, token: &[u8]) -> bool {
        self.form_token.as_bytes().ct_eq(token).into()
    }
}

impl Sessions {
    pub(crate) fn new_link(&self) -> String {
        let token = secret();
        push(&mut self.state().links, token.clone(), MAX_LINKS);
        token
    }

    /// Uses up a link, and returns the id of the new session.
    pub(crate) fn log_in(&self, token: &str) -> Option<String> {
        let mut state = self.state();
        let is_same = |link: &String| link.as_bytes().ct_eq(token.as_bytes()).into();
        let at = state.links.iter().position(is_same)?;
        state.links.remove(at);
        let session = Session {
            id: secret(),
            form_token: secret(),
        };
        let id = session.id.clone();
        push(&mut state.sessions, session, MAX_SESSIONS);
        Some(id)
    }

    pub(crate) fn find(&self, id: &str) -> Option<Session> {
        let state = self.state();
        let is_same = |session: &&Session| session.id.as_bytes().ct_eq(id.as_bytes()).into();
        state.sessions.iter().find(is_same).cloned()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn push<T>(all: &mut VecDeque<T>, one: T, max: usize) {
    if all.len() == max {
        all.pop_front();
    }
    all.push_back(one);
}

/// 256 random bits.
fn secret() -> String {
    URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>())
}

/// Omits the secrets.
impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").finish_non_exhaustive()
    }
}
