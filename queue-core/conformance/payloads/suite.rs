//! The one list of tests.

use super::super::suite::suite;
use super::harness::Harness;
use super::{listings, objects};

suite! { $ payload_store_tests payloads
    objects {
        an_object_comes_back_in_parts
        what_was_never_created_is_missing
        an_object_is_created_once
        one_of_many_creators_wins
        a_deleted_object_is_missing_and_can_be_created_again
        a_second_client_sees_the_same
    }
    listings {
        objects_are_listed_by_their_folder
        what_was_created_later_is_no_older
        an_object_that_stays_is_listed_once
    }
}
