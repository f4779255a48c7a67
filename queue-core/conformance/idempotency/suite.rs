//! The one list of tests.

use super::super::suite::suite;
use super::harness::Harness;
use super::{claims, clients, listings, results, takeover};

suite! { $ idempotency_tests idempotency
    claims {
        a_claim_is_given_to_its_owner_again_and_to_nobody_else
        keys_and_scopes_are_told_apart
        released_work_begins_at_once
        a_released_claim_is_lost
        one_of_many_begins_wins
    }
    takeover {
        a_claim_is_kept_until_its_lease_ends
        renewals_keep_a_claim
        a_claim_whose_lease_ended_is_taken_over
        a_claim_that_was_taken_over_changes_nothing
        a_claim_whose_lease_ended_still_finishes_if_nobody_took_it_over
        a_late_finish_and_a_takeover_exclude_each_other
    }
    results {
        a_result_is_what_all_later_calls_return
        results_of_all_sizes_come_back
        a_finished_claim_is_finished_once
        a_result_is_kept_until_its_retention_is_over
        a_sweep_removes_what_is_over_and_nothing_else
    }
    listings {
        records_are_listed_by_scope_and_key_page_by_page
        a_record_says_what_it_is_and_when_it_ends
        a_listing_misses_nothing_that_stays
        forgotten_work_begins_anew_and_work_in_flight_is_not_forgotten
    }
    clients {
        a_second_client_sees_the_same
        reopening_finds_what_survives
    }
}
