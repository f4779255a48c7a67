//! Account keys, what is signed of a request (`SharedKey` and `SharedKeyLite`), and signatures.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use http::Method;
use http::header::{HeaderMap, HeaderValue};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;

/// An account's key, which `Debug` does not show.
#[derive(Clone)]
pub struct AccountKey {
    keyed: Hmac<Sha256>,
}

/// What is signed of a request.
#[derive(Debug, Clone, Copy)]
pub struct Signed<'a> {
    /// The account's name.
    pub account: &'a str,
    /// The verb.
    pub verb: &'a Method,
    /// The path as it is sent, with its escapes; on an emulator it begins with the account.
    pub path: &'a str,
    /// The names and values of the query, without escapes.
    pub query: &'a [(String, String)],
    /// The headers.
    pub headers: &'a HeaderMap,
    /// The length of the body, in bytes.
    pub length: usize,
}

/// A header whose name begins with `x-ms-`: its name and its value.
type Own<'a> = (&'a str, &'a str);

/// How a client sorts the names of headers, if not by their bytes. The service does so by the culture of .NET, and clients
/// imitate it.
#[derive(Debug, Clone, Copy)]
enum Order {
    /// Underscores before digits and letters, as the packages for Python and JavaScript have them.
    UnderscoresFirst,
    /// By digits and letters alone, as .NET compares them.
    WithoutSymbols,
}

const ORDERS: [Order; 2] = [Order::UnderscoresFirst, Order::WithoutSymbols];

impl Order {
    fn compare(self, one: &str, other: &str) -> Ordering {
        let (one, other) = (one.bytes(), other.bytes());
        match self {
            Self::UnderscoresFirst => {
                let place = |byte| if byte == b'_' { b'.' } else { byte };
                one.map(place).cmp(other.map(place))
            }
            Self::WithoutSymbols => {
                let counts = u8::is_ascii_alphanumeric;
                one.filter(counts).cmp(other.filter(counts))
            }
        }
    }
}

/// The headers in the string to sign, in this order, between verb and `x-ms-*`. `content-length` and `date` have
/// additional rules.
pub const STANDARD_HEADERS: [&str; 11] = [
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

/// Those of `SharedKeyLite`.
const LITE_HEADERS: [&str; 3] = ["content-md5", "content-type", "date"];

impl AccountKey {
    /// Reads a key in Base64.
    ///
    /// # Errors
    /// What is wrong with the key, without it.
    pub fn decode(key: &str) -> Result<Self, &'static str> {
        let key = STANDARD
            .decode(key)
            .map_err(|_| "AccountKey is not Base64")?;
        if key.is_empty() {
            return Err("AccountKey is empty");
        }
        let keyed = Hmac::new_from_slice(&key).map_err(|_| "AccountKey has an invalid length")?;
        Ok(Self { keyed })
    }

    /// Returns the signature of a text, in Base64.
    #[must_use]
    pub fn signature(&self, text: &str) -> String {
        let mut keyed = self.keyed.clone();
        keyed.update(text.as_bytes());
        STANDARD.encode(keyed.finalize().into_bytes())
    }

    /// Whether this is the signature of a text. Takes as long whatever differs.
    #[must_use]
    pub fn has_signed(&self, text: &str, signature: &str) -> bool {
        let own = self.signature(text);
        own.as_bytes().ct_eq(signature.as_bytes()).into()
    }

    /// Returns the value of the header `authorization`.
    #[must_use]
    pub fn authorization(&self, signed: &Signed<'_>) -> String {
        let signature = self.signature(&signed.text());
        format!("SharedKey {}:{signature}", signed.account)
    }
}

impl fmt::Debug for AccountKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccountKey(…)")
    }
}

impl Signed<'_> {
    /// Returns the string to sign of `SharedKey`, with the headers in the order of their bytes.
    #[must_use]
    pub fn text(&self) -> String {
        self.text_with(&self.own())
    }

    /// Returns the string to sign of `SharedKeyLite`.
    #[must_use]
    pub fn text_lite(&self) -> String {
        self.text_lite_with(&self.own())
    }

    /// Returns the string to sign of `SharedKey`, or that of `SharedKeyLite`, with the headers in each of the orders in which
    /// clients have them. Which one it is tells nothing that another does not.
    #[must_use]
    pub fn texts(&self, is_lite: bool) -> Vec<String> {
        let text = |own: &[Own<'_>]| {
            if is_lite {
                self.text_lite_with(own)
            } else {
                self.text_with(own)
            }
        };
        let own = self.own();
        let mut texts = vec![text(&own)];
        for order in ORDERS {
            // Only names of metadata are in other places then, and a text costs more than its signature.
            if !own.is_sorted_by(|one, other| order.compare(one.0, other.0).is_le()) {
                let mut own = own.clone();
                own.sort_by(|one, other| order.compare(one.0, other.0));
                texts.push(text(&own));
            }
        }
        texts
    }

    fn text_with(&self, own: &[Own<'_>]) -> String {
        let mut text = self.lines(&STANDARD_HEADERS, own);
        for (name, values) in self.pairs() {
            text.push_str(&format!("\n{name}:{}", values.join(",")));
        }
        text
    }

    fn text_lite_with(&self, own: &[Own<'_>]) -> String {
        let mut text = self.lines(&LITE_HEADERS, own);
        if let Some(comp) = self.pairs().get("comp") {
            text.push_str(&format!("?comp={}", comp.join(",")));
        }
        text
    }

    /// Returns the headers whose names begin with `x-ms-`, in the order of their bytes.
    fn own(&self) -> Vec<Own<'_>> {
        let names = self.headers.keys().map(|name| name.as_str());
        let names = names.filter(|name| name.starts_with("x-ms-"));
        let mut own: Vec<_> = names.map(|name| (name, self.header(name))).collect();
        own.sort_unstable();
        own
    }

    fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).map(HeaderValue::to_str);
        value.and_then(Result::ok).unwrap_or_default().trim()
    }

    /// The lines of the headers, and the resource without its query.
    fn lines(&self, standard: &[&str], own: &[Own<'_>]) -> String {
        let mut text = String::with_capacity(512);
        text.push_str(self.verb.as_str());
        text.push('\n');
        for &name in standard {
            match name {
                "content-length" if self.length == 0 => {}
                "content-length" => text.push_str(&self.length.to_string()),
                "date" if own.iter().any(|(name, _)| *name == "x-ms-date") => {}
                _ => text.push_str(self.header(name)),
            }
            text.push('\n');
        }
        for (name, value) in own {
            for part in [name, ":", value, "\n"] {
                text.push_str(part);
            }
        }
        for part in ["/", self.account, self.path] {
            text.push_str(part);
        }
        text
    }

    fn pairs(&self) -> BTreeMap<String, Vec<&str>> {
        let mut pairs: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (name, value) in self.query {
            pairs.entry(name.to_lowercase()).or_default().push(value);
        }
        pairs.values_mut().for_each(|values| values.sort_unstable());
        pairs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|&(name, value)| {
            let name = http::HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        });
        pairs.collect()
    }

    fn query(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn names_of_headers_are_taken_in_each_order_that_clients_have() {
        let headers = headers(&[
            ("x-ms-meta-a_c", "1"),
            ("x-ms-meta-a1", "2"),
            ("x-ms-meta-abd", "3"),
        ]);
        let signed = Signed {
            account: "acct",
            verb: &Method::PUT,
            path: "/acct/orders",
            query: &[],
            headers: &headers,
            length: 0,
        };
        for (is_lite, own) in [(false, signed.text()), (true, signed.text_lite())] {
            let texts = signed.texts(is_lite);
            let orders = texts.iter().map(|text| {
                let of_header = |line: &str| Some(line.split_once(':')?.1.to_owned());
                text.lines().filter_map(of_header).collect::<String>()
            });
            assert_eq!(orders.collect::<Vec<_>>(), ["213", "123", "231"]);
            assert_eq!(texts[0], own);
        }
    }

    /// The example of the specification, "Authorize with Shared Key", for versions since 2015-02-21.
    #[test]
    fn the_example_of_the_specification() {
        let headers = headers(&[
            ("x-ms-version", "2015-02-21"),
            ("x-ms-date", "Fri, 26 Jun 2015 23:39:12 GMT"),
        ]);
        let signed = Signed {
            account: "myaccount",
            verb: &Method::GET,
            path: "/mycontainer",
            query: &query(&[
                ("restype", "container"),
                ("comp", "metadata"),
                ("timeout", "20"),
            ]),
            headers: &headers,
            length: 0,
        };
        assert_eq!(
            signed.text(),
            "GET\n\n\n\n\n\n\n\n\n\n\n\n\
             x-ms-date:Fri, 26 Jun 2015 23:39:12 GMT\nx-ms-version:2015-02-21\n\
             /myaccount/mycontainer\ncomp:metadata\nrestype:container\ntimeout:20"
        );
        assert_eq!(
            signed.text_lite(),
            "GET\n\n\n\nx-ms-date:Fri, 26 Jun 2015 23:39:12 GMT\nx-ms-version:2015-02-21\n\
             /myaccount/mycontainer?comp=metadata"
        );
    }

    #[test]
    fn an_emulator_has_the_account_twice_and_values_decoded() {
        let headers = headers(&[
            ("content-type", "application/xml"),
            ("date", "not signed beside x-ms-date"),
            ("x-ms-date", "now"),
            ("accept", "not signed"),
        ]);
        let signed = Signed {
            account: "acct",
            verb: &Method::PUT,
            path: "/acct/q/messages/1",
            query: &query(&[("popreceipt", "a+b=="), ("VisibilityTimeout", "5")]),
            headers: &headers,
            length: 42,
        };
        assert_eq!(
            signed.text(),
            "PUT\n\n\n42\n\napplication/xml\n\n\n\n\n\n\nx-ms-date:now\n\
             /acct/acct/q/messages/1\npopreceipt:a+b==\nvisibilitytimeout:5"
        );
        assert_eq!(signed.texts(false), [signed.text()]);
    }

    /// The expected value was computed by another implementation of HMAC.
    #[test]
    fn the_signature_is_an_hmac_of_the_decoded_key() {
        let key = AccountKey::decode("a2V5").expect("a key");
        let headers = headers(&[("x-ms-date", "now")]);
        let signed = Signed {
            account: "acct",
            verb: &Method::GET,
            path: "/",
            query: &query(&[("comp", "list")]),
            headers: &headers,
            length: 0,
        };
        let expected = "rbUoRqTo3M2sCbDet0sfmVd5S6LvEBTaolKhaxmIYuQ=";
        assert_eq!(
            key.authorization(&signed),
            format!("SharedKey acct:{expected}")
        );
        assert!(key.has_signed(&signed.text(), expected));
        assert!(!key.has_signed(
            &signed.text(),
            "rbUoRqTo3M2sCbDet0sfmVd5S6LvEBTaolKhaxmIYuR="
        ));
        assert!(!key.has_signed(&signed.text(), ""));
        assert!(!format!("{key:?}").contains("a2V5"));
    }
}
