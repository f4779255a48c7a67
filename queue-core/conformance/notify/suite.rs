//! The one list of tests.

use super::super::suite::suite;
use super::harness::Harness;
use super::{delivery, subscriptions};

suite! { $ notifier_tests notify
    delivery {
        a_notification_tells_messages_and_bytes
        another_client_is_reached
        other_queues_and_accounts_are_told_apart
        what_becomes_visible_later_is_announced_with_its_delay
        who_takes_nothing_leaves_the_messages_to_others
        messages_for_several_consumers_reach_several
        many_notifications_do_no_harm
    }
    subscriptions {
        a_subscription_that_is_dropped_is_over
        subscriptions_are_armed_as_promised
    }
}
