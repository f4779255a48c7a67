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

/// Whether two strings are equal, at compile time.
#[must_use]
pub const fn str_eq(left: &str, right: &str) -> bool {
    let (left, right) = (left.as_bytes(), right.as_bytes());
    if left.len() != right.len() {
        return false;
    }
    let mut at = 0;
    while at < left.len() {
        if left[at] != right[at] {
            return false;
        }
        at += 1;
    }
    true
}
