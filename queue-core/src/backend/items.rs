use std::fmt;

/// The most items that a [pack](crate::wire::Pack) has.
pub const MAX_ITEMS: u32 = 1_000;

/// A set of items of a [pack](crate::wire::Pack), which are numbered from 0.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct ItemSet {
    /// A bit for each item, the lowest one of a byte first. The last byte is not zero.
    bits: Vec<u8>,
}

impl ItemSet {
    /// Creates a set from the bytes of another one. Items from [`MAX_ITEMS`] on are left out.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut bits = bytes[..bytes.len().min(MAX_ITEMS.div_ceil(8) as usize)].to_vec();
        let used = bits.iter().rposition(|byte| *byte != 0);
        bits.truncate(used.map_or(0, |last| last + 1));
        Self { bits }
    }

    /// The bytes of the set: a bit for each item, the lowest one of a byte first. Empty for an empty set.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bits
    }

    /// Adds an item. Returns whether it was not in the set.
    ///
    /// # Panics
    /// If the item is not below [`MAX_ITEMS`].
    pub fn insert(&mut self, item: u32) -> bool {
        assert!(item < MAX_ITEMS, "a pack has at most {MAX_ITEMS} items");
        let (byte, bit) = place(item);
        if self.bits.len() <= byte {
            self.bits.resize(byte + 1, 0);
        }
        let is_new = self.bits[byte] & bit == 0;
        self.bits[byte] |= bit;
        is_new
    }

    /// Adds the items of another set. Returns whether none of them was in this one.
    pub fn insert_all(&mut self, other: &Self) -> bool {
        let mut all_new = true;
        for item in other.iter() {
            all_new &= self.insert(item);
        }
        all_new
    }

    /// Returns whether an item is in the set.
    #[must_use]
    pub fn contains(&self, item: u32) -> bool {
        let (byte, bit) = place(item);
        self.bits.get(byte).is_some_and(|bits| bits & bit != 0)
    }

    /// The number of items in the set.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.bits.iter().map(|byte| byte.count_ones()).sum()
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bits.is_empty()
    }

    /// The items of the set, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        (0..self.bits.len() as u32 * 8).filter(|item| self.contains(*item))
    }
}

fn place(item: u32) -> (usize, u8) {
    (item as usize / 8, 1 << (item % 8))
}

impl FromIterator<u32> for ItemSet {
    fn from_iter<I: IntoIterator<Item = u32>>(items: I) -> Self {
        let mut set = Self::default();
        for item in items {
            set.insert(item);
        }
        set
    }
}

impl fmt::Debug for ItemSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_inserted_and_comes_back_from_its_bytes() {
        let mut set: ItemSet = [0, 7, 8, 999].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 7, 8, 999]);
        assert_eq!((set.len(), set.is_empty()), (4, false));
        assert!(!set.contains(9) && !set.contains(5_000));
        assert_eq!(ItemSet::from_bytes(set.as_bytes()), set);
        assert!(!set.insert(7) && set.insert(9));
        let mut other: ItemSet = [3].into_iter().collect();
        assert!(set.insert_all(&other) && !set.insert_all(&other));
        other.insert(4);
        assert!(!set.insert_all(&other), "one was there before");
        assert!(set.contains(4));
    }

    #[test]
    fn bytes_from_elsewhere_are_bounded() {
        let all = ItemSet::from_bytes(&[255; 10_000]);
        assert_eq!(all.len(), MAX_ITEMS);
        assert_eq!(ItemSet::from_bytes(&[0; 50]), ItemSet::default());
    }
}
