//! The suite for [`PayloadStore`].

mod objects;

use std::sync::Arc;

use async_trait::async_trait;

use super::suite::{harness, suite};
use crate::payload_store::PayloadStore;

harness! {
    /// A store's test environment.
    pub trait Harness opens OpenedPayloads {}
}

/// A store under test. Dropping the store may remove it.
#[async_trait]
pub trait OpenedPayloads: Send + Sync {
    /// The first client.
    fn client(&self) -> Arc<dyn PayloadStore>;

    /// Opens another client of the same store, as independent of the first as the store allows.
    async fn second_client(&self) -> Arc<dyn PayloadStore>;
}

suite! { $ payload_store_tests payloads
    objects from Harness::open {
        an_object_comes_back_in_parts
        what_was_never_created_is_missing
        an_object_is_created_once
        one_of_many_creators_wins
        a_deleted_object_is_missing_and_can_be_created_again
        a_second_client_sees_the_same
        objects_are_listed_by_their_folder
        what_was_created_later_is_no_older
        an_object_that_stays_is_listed_once
    }
}
