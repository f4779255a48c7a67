//! The suite for [`Backend`](crate::backend::Backend).

mod apply;
mod bodies;
mod browsing;
mod clients;
mod conditional;
mod group_limits;
mod groups;
mod harness;
mod limits;
mod queues;
mod receipts;
mod tracking;
mod visibility;

use harness::Fixture;

use super::suite::{harness_itself, suite};

pub use harness::{Harness, Load, OpenedBackend, Ordering, ReceiptScope, Stepped, Survival};

suite! { $ conformance_tests backend
    queues from Fixture::open {
        metadata_is_replaced_as_a_whole
        a_deleted_queue_comes_back_empty
        clearing_takes_invisible_messages_too
        the_count_includes_invisible_messages
        every_method_reports_a_missing_queue
    }
    queues from Harness::open {
        creating_a_queue_twice_is_idempotent
        creating_with_other_metadata_is_refused
        queues_are_listed_by_prefix_in_order
        names_at_both_edges_work
    }
    queues from queues::counting {
        puts_and_deletes_are_totalled
        totals_go_on_after_a_clear
        a_moved_message_is_totalled_on_both_queues
        what_is_undone_is_not_totalled
        expired_messages_are_totalled_once_removed
        totals_are_those_of_all_clients
        totals_survive_like_messages
    }
    visibility from Fixture::open {
        what_was_put_is_received
        an_empty_queue_gives_nothing
        a_received_message_is_hidden_until_its_lease_ends
        a_lease_ends_on_time
        a_receive_tells_the_time_of_the_storage
        a_message_that_is_put_back_is_hidden_for_the_delay
        a_delayed_message_is_hidden_until_then
        each_receive_raises_the_dequeue_count
        peeking_changes_nothing
        a_receive_gives_at_most_what_was_asked
        messages_come_by_visibility_then_in_order
        many_come_in_the_order_of_the_puts
        an_update_of_zero_shows_the_message_at_once
        what_is_handed_back_keeps_its_place
        an_update_prolongs_and_shortens_the_lease
        a_message_behind_many_hidden_ones_is_found
        an_expired_message_is_never_seen
        a_message_lives_until_it_expires
        a_leased_message_expires
        an_update_does_not_prolong_life
        an_update_beyond_the_expiry_is_refused_or_ends_there
        many_expired_hide_nothing_behind_them
    }
    groups from groups::grouping {
        one_message_of_a_group_comes_at_a_time_in_order
        the_next_has_the_place_of_its_put
        a_retry_keeps_its_place_and_delays_its_group_only
        a_lease_that_ends_passes_the_group_on_with_a_higher_fence
        an_expired_message_passes_the_group_on
        a_message_that_expires_while_it_is_hidden_passes_the_group_on
        a_receipt_of_a_message_behind_stays_valid_when_it_is_the_first
        many_expired_messages_of_a_group_hide_nothing_behind_them
        a_long_backlog_of_one_group_hides_no_other
        the_delay_of_a_message_behind_counts_from_its_put
        what_is_undone_leaves_the_group_as_it_was
        an_update_leaves_the_others_behind
        messages_behind_are_shown_and_can_be_removed
        a_cleared_queue_has_no_groups
        groups_of_two_queues_are_two
        groups_survive_like_messages
        the_text_of_a_group_is_checked
        many_groups_and_long_backlogs_keep_their_order
    }
    group_limits from group_limits::limiting {
        at_most_so_many_messages_of_a_group_are_held
        groups_take_turns
        a_group_at_its_limit_takes_turns
        a_settlement_leaves_what_waits_in_its_place
        a_message_that_waits_lets_others_of_its_group_pass
        a_lease_that_ends_makes_room
        a_renewed_lease_keeps_its_room
        an_expired_message_makes_room
        the_number_changes_at_any_time
        order_and_turns_do_not_change_while_there_are_groups
        a_queue_has_its_limit_from_its_creation
        what_is_undone_leaves_the_turns_as_they_were
        what_is_no_limit_is_refused
        a_backlog_in_turns_is_received_within_its_limits
    }
    tracking from tracking::tracking {
        a_tracked_message_is_found_in_any_state
        a_tracked_message_tells_who_holds_it_and_since_when
        what_is_located_can_be_deleted_and_is_gone_then
        a_message_that_is_gone_is_not_found
        a_message_is_followed_to_another_queue
        all_copies_are_found_up_to_the_maximum
        what_was_not_put_is_not_found
        a_tracked_message_behind_others_of_its_group_is_found
        tracked_messages_are_found_by_all_clients
    }
    receipts from Fixture::open {
        a_deleted_message_is_gone
        the_receipt_of_a_put_allows_to_delete
        the_receipt_of_a_put_allows_to_update
        the_receipt_of_a_put_is_stale_after_a_receive
        a_receipt_is_stale_after_another_receive
        a_receipt_is_stale_after_an_update
        a_stale_receipt_is_told_from_a_missing_message
        a_lease_that_ran_out_still_settles
        an_update_replaces_or_keeps_the_body
        an_update_changes_one_message_only
        what_is_no_receipt_changes_nothing
        ids_are_never_given_twice
    }
    limits from Fixture::open {
        bodies_at_the_limit
        bodies_of_moved_messages
        metadata_at_the_limit
        how_many_a_receive_may_ask_for
        a_full_receive_fills_up
        visibility_timeouts_of_a_receive
        visibility_timeouts_of_an_update
        delays_of_a_put
        times_to_live_of_a_put
    }
    browsing from browsing::browsable {
        every_message_is_on_one_page_in_order
        browsing_tells_the_state_and_changes_nothing
        a_browsed_receipt_deletes_until_the_message_is_touched
        expired_messages_are_not_browsed
        arguments_of_a_browse
    }
    browsing from browsing::searchable {
        a_message_is_found_in_any_state
        all_copies_and_nothing_else_are_found
        an_id_is_found_however_it_is_written
        a_message_behind_many_others_is_found
        a_found_receipt_is_good_until_the_message_is_touched
        expired_messages_are_not_found
        arguments_of_a_find
    }
    bodies from Fixture::open {
        text_comes_back_as_it_was
        any_bytes_come_back_where_they_are_allowed
    }
    bodies from bodies::attachable {
        an_attachment_is_read_in_parts
        a_message_without_an_attachment_has_none
        an_attachment_stays_as_long_as_its_message
        a_moved_message_takes_its_attachment_along
        a_refused_move_leaves_the_attachment_where_it_was
    }
    apply from Fixture::open {
        nothing_to_apply_does_nothing
        operations_apply_across_queues
        receipts_from_an_apply_are_valid
        later_operations_see_earlier_ones
        a_refused_argument_spoils_an_atomic_apply
        many_operations_apply
        an_apply_is_bounded
    }
    apply from apply::with_message {
        deleted_items_are_told_by_later_receives
        a_message_goes_with_its_last_item
        an_item_is_deleted_once
        a_stale_receipt_deletes_no_item
        items_are_deleted_in_one_step_with_puts
        items_outside_a_pack_are_refused
    }
    apply from harness_itself {
        a_failure_in_the_middle
        a_missing_queue_in_the_middle
    }
    conditional from conditional::conditional {
        a_value_is_recorded_with_its_message
        a_value_that_differs_changes_nothing
        a_value_is_kept_until_its_retention_is_over
        a_value_is_recorded_without_a_message
        a_refused_put_records_nothing
        a_swap_is_one_step_with_the_operations_beside_it
        a_forgotten_value_is_not_recorded_any_more
        a_value_ends_with_its_message
        a_claim_is_its_owners_until_another_takes_it
        recorded_values_survive_like_messages
    }
    conditional from harness_itself {
        one_of_many_conditional_puts_wins
    }
    clients from Fixture::open {
        a_second_client_sees_the_same
        a_receipt_is_good_for_every_client
        queues_made_and_deleted_elsewhere_are_noticed
        a_queue_cleared_elsewhere_is_empty
        reopening_finds_what_survives
        ids_are_not_given_again_after_reopening
        a_clock_stepped_back_does_not_prolong_leases
        a_clock_stepped_back_while_closed_hides_nothing_for_long
    }
    clients from harness_itself {
        nothing_is_lost_and_nothing_held_twice
        two_clients_share_the_work
        one_of_many_deletes_wins
        one_of_many_updates_wins
        one_of_many_creations_wins
    }
}
