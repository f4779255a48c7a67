use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use queue_azure_wire::sign::AccountKey;
use queue_core::QueueName;
use queue_core::backend::Backend;
use queue_core::clock::Clock;

use crate::limit::{Limit, Load};

/// The account that emulators of the service have, and that clients know as `UseDevelopmentStorage=true`.
pub const DEVELOPMENT_ACCOUNT: &str = "devstoreaccount1";

/// The key of [`DEVELOPMENT_ACCOUNT`], which everybody knows.
pub const DEVELOPMENT_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// An account of the server: its name, its keys and its queues.
#[derive(Clone)]
pub struct Account {
    pub(crate) name: String,
    pub(crate) keys: Vec<AccountKey>,
    pub(crate) queues: Arc<dyn Backend>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) limit: Option<Arc<Limit>>,
}

impl Account {
    /// Creates an account with a key in Base64. The clock tells whether a request and its signature are of today.
    ///
    /// # Errors
    /// What is wrong with the name or the key.
    pub fn new(
        name: &str,
        key: &str,
        queues: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, String> {
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        if !(3..=24).contains(&name.len()) || !name.bytes().all(is_name) {
            return Err(format!(
                "the account name {name:?} is not of 3 to 24 lower-case letters and digits"
            ));
        }
        let account = Self {
            name: name.to_owned(),
            keys: Vec::new(),
            queues,
            clock,
            limit: None,
        };
        account.with_key(key)
    }

    /// Adds a further key in Base64, as while keys are exchanged.
    ///
    /// # Errors
    /// What is wrong with the key.
    pub fn with_key(mut self, key: &str) -> Result<Self, String> {
        let name = &self.name;
        let key =
            AccountKey::decode(key).map_err(|problem| format!("account `{name}`: {problem}"))?;
        self.keys.push(key);
        Ok(self)
    }

    /// Has requests be answered with 503 that are more than so many on one queue within any second, as the service's are
    /// beyond its limits.
    #[must_use]
    pub fn with_limit(mut self, requests: NonZeroUsize) -> Self {
        self.limit = Some(Arc::new(Limit::new(requests)));
        self
    }

    /// Returns the requests on a queue so far, which only an account with a [limit](Self::with_limit) counts.
    #[must_use]
    pub fn load(&self, queue: &QueueName) -> Option<Load> {
        self.limit.as_ref().map(|limit| limit.load(queue))
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account")
            .field("name", &self.name)
            .field("queues", &self.queues)
            .finish_non_exhaustive()
    }
}
