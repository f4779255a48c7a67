//! A shared access signature for the whole account.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::Sha256;

use crate::server::{ACCOUNT, KEY};

/// The query of a signature that allows everything on queues.
pub(crate) fn for_account() -> String {
    let (version, permissions, expiry) = ("2021-12-02", "rwdlacup", "2099-01-01T00:00:00Z");
    let text = format!("{ACCOUNT}\n{permissions}\nq\nsco\n\n{expiry}\n\nhttps,http\n{version}\n\n");
    let key = STANDARD.decode(KEY).expect("Base64");
    let mut keyed = Hmac::<Sha256>::new_from_slice(&key).expect("any length");
    keyed.update(text.as_bytes());
    let signature = STANDARD.encode(keyed.finalize().into_bytes());
    let encoded = |value: &str| utf8_percent_encode(value, NON_ALPHANUMERIC).to_string();
    format!(
        "sv={version}&ss=q&srt=sco&sp={permissions}&se={}&spr={}&sig={}",
        encoded(expiry),
        encoded("https,http"),
        encoded(&signature)
    )
}
