//! The one list of tests.

use super::super::suite::suite;
use super::harness::Harness;
use super::{completions, outcomes, puts, records};

suite! { $ transaction_tests transactions
    outcomes {
        all_is_committed_together
        nothing_stays_of_what_is_rolled_back
        a_dropped_transaction_is_rolled_back
        nothing_is_seen_before_the_commit
        an_open_transaction_has_no_outcome
        an_outcome_is_final
        outcomes_are_told_apart
    }
    puts {
        messages_are_put_as_they_would_be_without_a_transaction
        missing_queues_are_created_with_their_messages
        a_missing_reply_queue_is_not_created
        a_put_beyond_the_limits_writes_nothing_and_the_transaction_goes_on
        several_writes_belong_to_one_transaction
    }
    completions {
        a_message_that_was_received_again_is_not_completed
        a_message_that_is_gone_is_not_completed
        a_completion_that_fails_puts_nothing_and_the_transaction_goes_on
        a_lease_that_ended_still_completes
        an_update_without_an_answer_does_not_cost_the_lease
        a_message_is_completed_once
    }
    records {
        a_result_is_recorded_if_and_only_if_it_is_committed
        a_claim_that_was_taken_over_completes_nothing
        a_unique_key_is_released_with_its_message
        a_key_that_another_holds_is_left_alone
    }
}
