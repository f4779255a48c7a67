//! The named stores of this process.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, Weak};

use queue_core::Clock;
use queue_core::internal::LockExt as _;

use super::store::Store;

// Weak, so that a store is dropped with its last user, and a later one of that name starts empty.
static STORES: LazyLock<Mutex<HashMap<String, Weak<Store>>>> = LazyLock::new(Mutex::default);

/// Returns the store of that name, or creates it with this clock if no backend uses one.
pub(super) fn find_or_create(name: &str, clock: Arc<dyn Clock>) -> Arc<Store> {
    let mut stores = STORES.hold();
    if let Some(store) = stores.get(name).and_then(Weak::upgrade) {
        return store;
    }
    stores.retain(|_, store| store.strong_count() > 0);
    let store = Arc::new(Store::new(clock));
    stores.insert(name.to_owned(), Arc::downgrade(&store));
    store
}
