//! What is said to be signed: nothing is taken for signed that the key has not signed.
#![no_main]

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use libfuzzer_sys::fuzz_target;
use queue_azure_wire::sas::{self, Sas};
use queue_azure_wire::sign::{AccountKey, Signed};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let _ = sas::time(text);
    let _ = AccountKey::decode(text);
    let key = AccountKey::decode("a2V5IG9mIHRoZSBzaG9w").expect("a key");
    let (path, rest) = text.split_once('?').unwrap_or((text, ""));
    let (query, lines) = rest.split_once('\n').unwrap_or((rest, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let query: Vec<_> = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    if let Ok(Some(sas)) = Sas::read(&query) {
        for queue in [None, Some("orders")] {
            assert!(!sas.is_signed_with(&key, "shop", queue), "{sas:?}");
        }
    }
    let headers = lines.lines().filter_map(|line| line.split_once(':'));
    let headers: HeaderMap = headers
        .filter_map(|(name, value)| Some((name.parse::<HeaderName>().ok()?, HeaderValue::from_str(value).ok()?)))
        .collect();
    let signed = Signed {
        account: "shop",
        verb: &Method::GET,
        path,
        query: &query,
        headers: &headers,
        length: lines.len(),
    };
    let authorization = key.authorization(&signed);
    let signature = authorization.rsplit_once(':').expect("a signature").1;
    let signs = |text: &String| key.has_signed(text, signature);
    assert!(signed.texts(false).iter().any(signs));
    let other = Signed { path: "/other/account", ..signed };
    assert!(path == other.path || !other.texts(false).iter().any(signs));
});
