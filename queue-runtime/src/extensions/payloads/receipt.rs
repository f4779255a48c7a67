//! A receipt that also tells which payload its message has, so that whoever settles the message need not know it.

use queue_core::backend::PopReceipt;
use queue_core::internal::hex;
use queue_core::wire::StoredPayload;

/// What a receipt holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) payload: Option<StoredPayload>,
    pub(super) receipt: PopReceipt,
}

const SEPARATOR: char = ' ';
const NO_PAYLOAD: &str = "-";

impl Held {
    /// Reads a receipt that this module has written. Of any other one, the storage tells what is wrong.
    pub(super) fn read(held: &PopReceipt) -> Self {
        let read = || {
            let (store, rest) = held.reveal().split_once(SEPARATOR)?;
            let (name, receipt) = rest.split_once(SEPARATOR)?;
            let payload = match hex(store) {
                Some(store) => Some(StoredPayload::new(store, name)?),
                None if store == NO_PAYLOAD => None,
                None => return None,
            };
            let receipt = PopReceipt::new(receipt);
            Some(Self { payload, receipt })
        };
        read().unwrap_or_else(|| Self {
            payload: None,
            receipt: held.clone(),
        })
    }

    /// Writes the receipt that takes the place of the storage's.
    pub(super) fn write(payload: Option<&StoredPayload>, receipt: &PopReceipt) -> PopReceipt {
        let receipt = receipt.reveal();
        PopReceipt::new(match payload {
            Some(StoredPayload { store, name, .. }) => format!("{store:032x} {name} {receipt}"),
            None => format!("{NO_PAYLOAD} {NO_PAYLOAD} {receipt}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_comes_back_with_its_payload() {
        let name = format!("orders/id.60.{:032x}", 7);
        let payload = StoredPayload::new(5, &name).expect("a name");
        for payload in [Some(payload), None] {
            for text in ["AgAAAAMAAAAAAAAA=", "with spaces in it", ""] {
                let receipt = PopReceipt::new(text);
                let held = Held::write(payload.as_ref(), &receipt);
                let payload = payload.clone();
                assert_eq!(Held::read(&held), Held { payload, receipt });
            }
        }
    }

    #[test]
    fn a_receipt_of_the_storage_is_left_as_it_is() {
        for text in ["", "abc", "1 2", "12 not-a-name x"] {
            let receipt = PopReceipt::new(text);
            let payload = None;
            assert_eq!(Held::read(&receipt), Held { payload, receipt });
        }
    }
}
