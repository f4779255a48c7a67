//! Bugs in transactions.

use queue_core::conformance::transactions as suite;

use super::buggy_transactions::{Bug, BuggyHarness};
use super::{fails, planted};

fn notices(test: suite::Test, bug: Bug) -> bool {
    fails(|| suite::run(&BuggyHarness(bug), test))
}

planted! { for every test:
    CommitsNever => all_is_committed_together missing_queues_are_created_with_their_messages
        several_writes_belong_to_one_transaction
        a_result_is_recorded_if_and_only_if_it_is_committed a_unique_key_is_released_with_its_message;
    CommitsAlways => nothing_stays_of_what_is_rolled_back a_dropped_transaction_is_rolled_back
        several_writes_belong_to_one_transaction an_outcome_is_final;
    PutsAtOnce => nothing_is_seen_before_the_commit nothing_stays_of_what_is_rolled_back;
    CompletesAtOnce => nothing_is_seen_before_the_commit nothing_stays_of_what_is_rolled_back;
    ForgetsToPut => all_is_committed_together;
    ForgetsToComplete => all_is_committed_together a_lease_that_ended_still_completes;
    AnswersWhileItIsOpen => an_open_transaction_has_no_outcome;
    AnswersYes => nothing_stays_of_what_is_rolled_back outcomes_are_told_apart;
    AnswersNo => all_is_committed_together outcomes_are_told_apart;
    AnswersForTheLastOne => outcomes_are_told_apart an_outcome_is_final;
    ForgetsWhenClosed => an_outcome_is_final;
    DropsTheDelay => messages_are_put_as_they_would_be_without_a_transaction;
    DropsTheGroup => a_group_goes_on_with_the_commit;
    PutsBackwards => messages_are_put_as_they_would_be_without_a_transaction;
    CreatesQueuesAtOnce => missing_queues_are_created_with_their_messages;
    CreatesReplyQueues => a_missing_reply_queue_is_not_created;
    LeavesOutWhatIsTooLarge => a_put_beyond_the_limits_writes_nothing_and_the_transaction_goes_on;
    WritesInTwoSteps => a_completion_that_fails_puts_nothing_and_the_transaction_goes_on;
    EndsWithAnError => a_completion_that_fails_puts_nothing_and_the_transaction_goes_on
        a_put_beyond_the_limits_writes_nothing_and_the_transaction_goes_on;
    CompletesWhatOthersReceived => a_message_that_was_received_again_is_not_completed;
    CompletesWhatIsGone => a_message_that_is_gone_is_not_completed;
    LeavesOutTheSecond => a_message_is_completed_once;
    NeedsALease => a_lease_that_ended_still_completes;
    NeedsTheLastReceipt => an_update_without_an_answer_does_not_cost_the_lease;
    ForgetsTheResult => a_result_is_recorded_if_and_only_if_it_is_committed
        a_claim_that_was_taken_over_completes_nothing;
    RecordsAtOnce => a_result_is_recorded_if_and_only_if_it_is_committed;
    KeepsTheKey => a_unique_key_is_released_with_its_message;
    ReleasesAnyKey => a_key_that_another_holds_is_left_alone;
    FailsForAnothersKey => a_key_that_another_holds_is_left_alone;
}
