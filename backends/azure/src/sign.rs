//! Signing of requests with an account's key.

use azure_core::credentials::Secret;
use azure_core::http::Url;
use hyper::Method;
use hyper::header::HeaderMap;
use queue_azure_wire::sign::{self, Signed};

/// An account's name and key, which `Debug` does not show.
#[derive(Debug)]
pub(super) struct AccountKey {
    account: String,
    key: sign::AccountKey,
}

impl AccountKey {
    pub(super) fn decode(account: &str, key: &Secret) -> Result<Self, &'static str> {
        Ok(Self {
            account: account.to_owned(),
            key: sign::AccountKey::decode(key.secret())?,
        })
    }

    /// Returns the value of the header `authorization`.
    pub(super) fn authorization(
        &self,
        verb: &Method,
        url: &Url,
        headers: &HeaderMap,
        length: usize,
    ) -> String {
        let query: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        self.key.authorization(&Signed {
            account: &self.account,
            verb,
            path: url.path(),
            query: &query,
            headers,
            length,
        })
    }
}
