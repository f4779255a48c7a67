//! Signing of requests with an account key, as defined by the storage services (`SharedKey`).

use std::collections::BTreeMap;

use azure_core::credentials::Secret;
use azure_core::http::Url;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use hyper::Method;
use hyper::header::{HeaderMap, HeaderValue};
use queue_core::internal::debug_fields;
use sha2::Sha256;

/// An account's key, which `Debug` does not show.
pub(super) struct AccountKey {
    account: String,
    keyed: Hmac<Sha256>,
}

/// The headers in the string to sign, in this order, between verb and `x-ms-*`.
/// `content-length` and `date` have additional rules.
const STANDARD_HEADERS: [&str; 11] = [
    "content-encoding",
    "content-language",
    "content-length",
    "content-md5",
    "content-type",
    "date",
    "if-modified-since",
    "if-match",
    "if-none-match",
    "if-unmodified-since",
    "range",
];

impl AccountKey {
    pub(super) fn decode(account: &str, key: &Secret) -> Result<Self, &'static str> {
        let key = STANDARD
            .decode(key.secret())
            .map_err(|_| "AccountKey is not Base64")?;
        if key.is_empty() {
            return Err("AccountKey is empty");
        }
        let keyed = Hmac::new_from_slice(&key).map_err(|_| "AccountKey has an invalid length")?;
        Ok(Self {
            account: account.to_owned(),
            keyed,
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
        let text = string_to_sign(&self.account, verb, url, headers, length);
        let mut keyed = self.keyed.clone();
        keyed.update(text.as_bytes());
        let signature = STANDARD.encode(keyed.finalize().into_bytes());
        format!("SharedKey {}:{signature}", self.account)
    }
}

debug_fields!(AccountKey { account });

fn string_to_sign(
    account: &str,
    verb: &Method,
    url: &Url,
    headers: &HeaderMap,
    length: usize,
) -> String {
    let mut own = BTreeMap::new();
    for (name, value) in headers {
        if name.as_str().starts_with("x-ms-") {
            own.insert(name.as_str(), text_of(value));
        }
    }
    let mut text = format!("{verb}\n");
    for name in STANDARD_HEADERS {
        match name {
            "content-length" if length == 0 => {}
            "content-length" => text.push_str(&length.to_string()),
            "date" if own.contains_key("x-ms-date") => {}
            _ => text.push_str(headers.get(name).map_or("", text_of)),
        }
        text.push('\n');
    }
    for (name, value) in own {
        text.push_str(&format!("{name}:{value}\n"));
    }
    text.push_str(&canonical_resource(account, url));
    text
}

fn text_of(value: &HeaderValue) -> &str {
    value.to_str().unwrap_or_default().trim()
}

fn canonical_resource(account: &str, url: &Url) -> String {
    let mut resource = format!("/{account}{}", url.path());
    let mut pairs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in url.query_pairs() {
        let values = pairs.entry(name.to_lowercase()).or_default();
        values.push(value.into_owned());
    }
    for (name, mut values) in pairs {
        values.sort();
        resource.push_str(&format!("\n{name}:{}", values.join(",")));
    }
    resource
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.insert(*name, HeaderValue::from_static(value));
        }
        headers
    }

    /// The example of the specification, "Authorize with Shared Key", for versions since 2015-02-21.
    #[test]
    fn the_example_of_the_specification() {
        let url = "http://myaccount.blob.core.windows.net/mycontainer?restype=container&comp=metadata&timeout=20";
        let headers = headers(&[
            ("x-ms-version", "2015-02-21"),
            ("x-ms-date", "Fri, 26 Jun 2015 23:39:12 GMT"),
        ]);
        let url = Url::parse(url).expect("a URL");
        assert_eq!(
            string_to_sign("myaccount", &Method::GET, &url, &headers, 0),
            "GET\n\n\n\n\n\n\n\n\n\n\n\n\
             x-ms-date:Fri, 26 Jun 2015 23:39:12 GMT\nx-ms-version:2015-02-21\n\
             /myaccount/mycontainer\ncomp:metadata\nrestype:container\ntimeout:20"
        );
    }

    #[test]
    fn an_emulator_has_the_account_twice_and_values_decoded() {
        let url =
            "http://127.0.0.1:10001/acct/q/messages/1?popreceipt=a%2Bb%3D%3D&VisibilityTimeout=5";
        let headers = headers(&[
            ("content-type", "application/xml"),
            ("date", "not signed beside x-ms-date"),
            ("x-ms-date", "now"),
            ("accept", "not signed"),
        ]);
        let url = Url::parse(url).expect("a URL");
        assert_eq!(
            string_to_sign("acct", &Method::PUT, &url, &headers, 42),
            "PUT\n\n\n42\n\napplication/xml\n\n\n\n\n\n\nx-ms-date:now\n\
             /acct/acct/q/messages/1\npopreceipt:a+b==\nvisibilitytimeout:5"
        );
    }

    /// The expected value was computed by another implementation of HMAC.
    #[test]
    fn the_signature_is_an_hmac_of_the_decoded_key() {
        let key = AccountKey::decode("acct", &Secret::new("a2V5")).expect("a key");
        let url = Url::parse("https://acct.queue.core.windows.net/?comp=list").expect("a URL");
        let signed = key.authorization(&Method::GET, &url, &headers(&[("x-ms-date", "now")]), 0);
        assert_eq!(
            signed,
            "SharedKey acct:rbUoRqTo3M2sCbDet0sfmVd5S6LvEBTaolKhaxmIYuQ="
        );
        assert!(!format!("{key:?}").contains("a2V5"));
    }
}
