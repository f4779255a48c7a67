use std::sync::Arc;

use queue_core::backend::{
    Atomicity, Attachments, Backend, BodyForm, Browsing, Capabilities, ConditionalPuts, Places,
    StaleReceipts,
};

/// Returns what all of these accounts can do together. Several are never atomic, and a record of one cannot be changed in
/// one step with a message of another.
pub(crate) fn of_all(accounts: &[Arc<dyn Backend>]) -> Capabilities {
    let mut all = accounts.iter().map(|account| account.capabilities());
    let mut together = all.next().expect("there is an account").clone();
    for one in all {
        together.max_body = together.max_body.min(one.max_body);
        together.max_moved_body = together.max_moved_body.min(one.max_moved_body);
        together.max_metadata = together.max_metadata.min(one.max_metadata);
        together.max_receive = together.max_receive.min(one.max_receive);
        together.min_visibility = together.min_visibility.max(one.min_visibility);
        together.max_visibility = together.max_visibility.min(one.max_visibility);
        together.max_delay = together.max_delay.min(one.max_delay);
        together.idle_cap = together.idle_cap.max(one.idle_cap);
        together.max_apply = together.max_apply.min(one.max_apply);
        together.max_apply_bytes = together.max_apply_bytes.min(one.max_apply_bytes);
        if one.body == BodyForm::Text {
            together.body = BodyForm::Text;
        }
        if one.stale_receipts == StaleReceipts::Ambiguous {
            together.stale_receipts = StaleReceipts::Ambiguous;
        }
        if one.places == Places::Lost {
            together.places = Places::Lost;
        }
        if one.browsing == Browsing::Unsupported {
            together.browsing = Browsing::Unsupported;
        }
    }
    if accounts.len() > 1 {
        together.atomicity = Atomicity::InOrder;
        together.conditional_puts = ConditionalPuts::Unsupported;
        together.attachments = Attachments::Unsupported;
    }
    together
}
