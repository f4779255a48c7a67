//! Bugs in a result store.

use queue_core::conformance::idempotency as suite;

use super::buggy_results::{Bug, BuggyHarness};
use super::{fails, planted};

fn notices(test: suite::Test, bug: Bug) -> bool {
    fails(|| suite::run(&BuggyHarness(bug), test))
}

planted! { for every test:
    GrantsToAll => a_claim_is_given_to_its_owner_again_and_to_nobody_else one_of_many_begins_wins;
    RefusesTheOwner => a_claim_is_given_to_its_owner_again_and_to_nobody_else;
    TellsNoTime => a_claim_is_given_to_its_owner_again_and_to_nobody_else;
    IgnoresTheScope => keys_and_scopes_are_told_apart;
    JoinsScopeAndKey => keys_and_scopes_are_told_apart;
    FoldsCase => keys_and_scopes_are_told_apart;
    ReleasesNothing => released_work_begins_at_once;
    ReleasesForAnyone => a_released_claim_is_lost a_claim_that_was_taken_over_changes_nothing;
    FinishesForAnyone => a_released_claim_is_lost a_claim_that_was_taken_over_changes_nothing
        a_late_finish_and_a_takeover_exclude_each_other;
    RenewsForAnyone => a_released_claim_is_lost a_claim_that_was_taken_over_changes_nothing;
    ForgetsRenewals => renewals_keep_a_claim;
    EndsEarly => a_claim_is_kept_until_its_lease_ends renewals_keep_a_claim;
    NeverEnds => a_claim_whose_lease_ended_is_taken_over;
    EndsClaimsWithTheirLease => a_claim_whose_lease_ended_still_finishes_if_nobody_took_it_over
        a_sweep_removes_what_is_over_and_nothing_else;
    LosesResults => a_result_is_what_all_later_calls_return;
    LosesEmptyResults => results_of_all_sizes_come_back;
    CutsResultsOff => results_of_all_sizes_come_back;
    ReplacesResults => a_finished_claim_is_finished_once;
    ReleasesResults => a_finished_claim_is_finished_once;
    KeepsResultsForALease => a_result_is_kept_until_its_retention_is_over;
    KeepsResultsForever => a_result_is_kept_until_its_retention_is_over;
    SweepsResults => a_sweep_removes_what_is_over_and_nothing_else;
    SweepsNothing => a_sweep_removes_what_is_over_and_nothing_else;
    SweepsWithoutEnd => a_sweep_removes_what_is_over_and_nothing_else;
    SecondClientIsApart => a_second_client_sees_the_same one_of_many_begins_wins;
    LosesAllWhenClosed => reopening_finds_what_survives;
    ListsNothing => records_are_listed_by_scope_and_key_page_by_page
        a_record_says_what_it_is_and_when_it_ends a_listing_misses_nothing_that_stays;
    ListsByKey => records_are_listed_by_scope_and_key_page_by_page;
    ListsAllScopes => records_are_listed_by_scope_and_key_page_by_page;
    ListsTheStartTwice => records_are_listed_by_scope_and_key_page_by_page
        a_listing_misses_nothing_that_stays;
    SkipsTheStart => records_are_listed_by_scope_and_key_page_by_page
        a_listing_misses_nothing_that_stays;
    ListsWithoutEnd => records_are_listed_by_scope_and_key_page_by_page;
    ListsMoreThanWanted => records_are_listed_by_scope_and_key_page_by_page;
    AcceptsAnyMark => records_are_listed_by_scope_and_key_page_by_page;
    ListsWhatIsOver => a_record_says_what_it_is_and_when_it_ends;
    ListsValues => a_record_says_what_it_is_and_when_it_ends;
    ListsNoSize => a_record_says_what_it_is_and_when_it_ends;
    LooksUpWithoutValue => a_record_says_what_it_is_and_when_it_ends;
    LooksUpWhatIsOver => a_record_says_what_it_is_and_when_it_ends;
    TellsTheEndAsNow => a_record_says_what_it_is_and_when_it_ends;
    HidesStoppedWork => a_record_says_what_it_is_and_when_it_ends;
    ForgetsNothing => forgotten_work_begins_anew_and_work_in_flight_is_not_forgotten;
    ForgetsWorkInFlight => forgotten_work_begins_anew_and_work_in_flight_is_not_forgotten;
    KeepsStoppedWork => forgotten_work_begins_anew_and_work_in_flight_is_not_forgotten;
    ForgetsAllScopes => forgotten_work_begins_anew_and_work_in_flight_is_not_forgotten;
    IsUnsupported => records_are_listed_by_scope_and_key_page_by_page;
}
