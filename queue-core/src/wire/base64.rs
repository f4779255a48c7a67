use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurposeConfig};

const CONFIG: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
type Engine = base64::engine::Simd;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
static BASE64: LazyLock<Engine> = LazyLock::new(|| Engine::standard(CONFIG));

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
type Engine = base64::engine::GeneralPurpose;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
static BASE64: LazyLock<Engine> =
    LazyLock::new(|| Engine::new(&base64::alphabet::STANDARD, CONFIG));

/// Encodes bytes as standard Base64 with padding.
#[must_use]
pub fn to_base64(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// Decodes Base64, or returns `None` if the text is not Base64 or is empty.
///
/// White space is ignored and padding is optional, because producers differ.
#[must_use]
pub fn unwrap_base64(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.trim_ascii();
    if text.is_empty() {
        return None;
    }
    if !text.iter().any(u8::is_ascii_whitespace) {
        return BASE64.decode(text).ok();
    }
    let mut text = text.to_vec();
    text.retain(|byte| !byte.is_ascii_whitespace());
    BASE64.decode(text).ok()
}
