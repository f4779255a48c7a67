//! Bugs in a backend.

use std::sync::Arc;

use queue_core::conformance::{self as suite, Load};

use super::bug::Bug;
use super::buggy_backend::Buggy;
use super::{fails, planted};
use crate::memory::MemoryHarness;

fn notices(test: suite::Test, bug: Bug) -> bool {
    let mut harness = MemoryHarness::new();
    harness.wrap = Arc::new(move |backend| Arc::new(Buggy::new(backend, bug)));
    harness.load = Load {
        tasks: 8,
        messages: 800,
    };
    fails(|| suite::run(&harness, test))
}

planted! {
    AcceptsStaleDelete => a_receipt_is_stale_after_another_receive a_deleted_message_is_gone
        a_receipt_is_stale_after_an_update;
    AcceptsStaleUpdate => a_receipt_is_stale_after_another_receive a_receipt_is_stale_after_an_update;
    CountStaysOne => each_receive_raises_the_dequeue_count;
    AppliesBeforeFailing => a_failure_in_the_middle a_missing_queue_in_the_middle;
    LosesPutOfApply => a_message_is_followed_to_another_queue operations_apply_across_queues many_operations_apply;
    ReceivesTwice => a_received_message_is_hidden_until_its_lease_ends
        nothing_is_lost_and_nothing_held_twice;
    LosesPuts => many_come_in_the_order_of_the_puts;
    DropsDelay => a_delayed_message_is_hidden_until_then;
    DropsGroups => one_message_of_a_group_comes_at_a_time_in_order many_groups_and_long_backlogs_keep_their_order
        a_retry_keeps_its_place_and_delays_its_group_only an_expired_message_passes_the_group_on
        the_delay_of_a_message_behind_counts_from_its_put what_is_undone_leaves_the_group_as_it_was
        an_update_leaves_the_others_behind messages_behind_are_shown_and_can_be_removed a_cleared_queue_has_no_groups;
    SharesGroups => one_message_of_a_group_comes_at_a_time_in_order;
    DropsGroupLimits => a_settlement_leaves_what_waits_in_its_place at_most_so_many_messages_of_a_group_are_held groups_take_turns
        a_message_that_waits_lets_others_of_its_group_pass a_lease_that_ends_makes_room the_number_changes_at_any_time
        order_and_turns_do_not_change_while_there_are_groups what_is_no_limit_is_refused
        a_backlog_in_turns_is_received_within_its_limits;
    DropsTracking => a_tracked_message_is_found_in_any_state a_tracked_message_tells_who_holds_it_and_since_when
        what_is_located_can_be_deleted_and_is_gone_then
        all_copies_are_found_up_to_the_maximum
        a_tracked_message_behind_others_of_its_group_is_found;
    LocatesOnce => all_copies_are_found_up_to_the_maximum;
    RepeatsFences => a_lease_that_ends_passes_the_group_on_with_a_higher_fence;
    PutsBackAtOnce => a_message_that_is_put_back_is_hidden_for_the_delay;
    DropsTimeToLive => an_expired_message_is_never_seen a_leased_message_expires
        an_update_beyond_the_expiry_is_refused_or_ends_there;
    UpdateForgetsBody => an_update_replaces_or_keeps_the_body;
    PeekLeases => peeking_changes_nothing;
    ForgetsMetadata => metadata_is_replaced_as_a_whole;
    CountsVisibleOnly => the_count_includes_invisible_messages;
    ClearsVisibleOnly => clearing_takes_invisible_messages_too;
    RefusesAtLimit => bodies_at_the_limit;
    AllowsPastLimit => bodies_at_the_limit;
    RefusesMoved => bodies_of_moved_messages;
    AllowsAnyMoved => bodies_of_moved_messages;
    RefusesMetadataAtLimit => metadata_at_the_limit;
    AllowsMetadataPastLimit => metadata_at_the_limit;
    AllowsShorterVisibility => visibility_timeouts_of_a_receive;
    MissingLooksEmpty => every_method_reports_a_missing_queue;
    ListsUnsorted => queues_are_listed_by_prefix_in_order;
    ReceivesLastFirst => messages_come_by_visibility_then_in_order many_come_in_the_order_of_the_puts;
    LosesPlaces => what_is_handed_back_keeps_its_place;
    TrimsBodies => text_comes_back_as_it_was;
    ReceiptsStay => a_receipt_is_stale_after_an_update;
    ReceivedWhenPut => a_receive_tells_the_time_of_the_storage;
    ConfusesStaleReceipts => a_stale_receipt_is_told_from_a_missing_message;
    AppliesMore => an_apply_is_bounded;
    AppliesLarger => an_apply_is_bounded;
    BrowsesVisibleOnly => every_message_is_on_one_page_in_order;
    BrowsesOnePage => every_message_is_on_one_page_in_order;
    BrowsesTwice => every_message_is_on_one_page_in_order;
    BrowsesBackwards => every_message_is_on_one_page_in_order;
    BrowseReceives => browsing_tells_the_state_and_changes_nothing;
    BrowseTellsNoState => browsing_tells_the_state_and_changes_nothing;
    BrowsesFirstReceipts => a_browsed_receipt_deletes_until_the_message_is_touched;
    BrowsesExpired => expired_messages_are_not_browsed;
    BrowsesAnyMark => arguments_of_a_browse;
    FindsVisibleOnly => a_message_is_found_in_any_state;
    FindsOneCopy => all_copies_and_nothing_else_are_found;
    FindsByText => all_copies_and_nothing_else_are_found an_id_is_found_however_it_is_written;
    FindsInFirstPage => a_message_behind_many_others_is_found;
    FindsFirstReceipts => a_found_receipt_is_good_until_the_message_is_touched;
    FindsExpired => expired_messages_are_not_found;
    FindsAnyMax => arguments_of_a_find;
    TotalsPresent => puts_and_deletes_are_totalled totals_go_on_after_a_clear
        a_moved_message_is_totalled_on_both_queues expired_messages_are_totalled_once_removed;
    TotalsOfCalls => what_is_undone_is_not_totalled;
    TotalsOfClient => totals_are_those_of_all_clients;
    ClaimsNotToBrowse => arguments_of_a_find arguments_of_a_browse;
    PutsWithoutSwap => a_value_that_differs_changes_nothing;
    SwapsAnything => a_value_that_differs_changes_nothing one_of_many_conditional_puts_wins;
    SwapsWithoutPut => a_value_is_recorded_with_its_message;
    SwapsBeforeRefusal => a_refused_put_records_nothing;
    ForgetsRetention => a_value_is_kept_until_its_retention_is_over;
    SwapsOnlyOnce => a_value_that_differs_changes_nothing a_value_is_recorded_without_a_message;
    NeedsQueueToSwap => a_value_is_recorded_without_a_message;
    ClaimsNotToSwap => a_value_is_recorded_with_its_message;
    AppliesWithoutSwap => a_swap_is_one_step_with_the_operations_beside_it;
    SwapsBeforeApplying => a_swap_is_one_step_with_the_operations_beside_it;
    GivesIdsAgain => a_deleted_queue_comes_back_empty;
    NamesNoQueueInUri => names_at_both_edges_work;
    NamesClientInUri => a_second_client_sees_the_same;
    ForgetsNothing => a_forgotten_value_is_not_recorded_any_more;
    OutlivesItsMessage => a_value_ends_with_its_message;
    TakesEndedClaimsForNone => a_claim_is_its_owners_until_another_takes_it;
    EndsClaimsWithTheirLease => a_claim_is_its_owners_until_another_takes_it;
    TellsNoOwner => a_claim_is_its_owners_until_another_takes_it;
}
