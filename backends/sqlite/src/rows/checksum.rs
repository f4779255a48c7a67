//! The checksum of a body.

/// Returns the checksum of a message's salt and body. With the salt, which no other message has, the body
/// of another message has another checksum.
pub(crate) fn checksum(salt: i64, body: &[u8]) -> i64 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&salt.to_be_bytes());
    hasher.update(body);
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flipped_bit_or_another_salt_changes_it() {
        let body = b"{\"amount\":100}".to_vec();
        let expected = checksum(7, &body);
        assert_eq!(expected, 0x168f_e95e, "files depend on it");
        assert_ne!(checksum(8, &body), expected);
        for bit in 0..body.len() * 8 {
            let mut flipped = body.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(checksum(7, &flipped), expected, "bit {bit}");
        }
    }
}
