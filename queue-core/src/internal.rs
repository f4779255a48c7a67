//! Shared with the other crates of this workspace. Not public API: anything here may change in any
//! release.

/// The longest prefix of at most `max` bytes.
#[must_use]
pub fn clip(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len()))
        .rev()
        .find(|&at| text.is_char_boundary(at));
    &text[..end.unwrap_or(0)]
}
