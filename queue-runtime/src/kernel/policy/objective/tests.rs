use queue_tests::SECOND;

use super::*;

const NONE: Unfinished = Unfinished {
    late: 0,
    oldest: None,
};

fn window() -> Window {
    Window::new(Objective::p99(30 * SECOND))
}

/// Completes messages at a moment, of which some are late.
fn complete(window: &mut Window, at: Duration, messages: usize, late: usize) {
    for number in 0..messages {
        let age = if number < late { 31 } else { 30 };
        window.settled(at, age * SECOND, Settlement::Completed);
    }
}

fn figures(window: &Window, unfinished: Unfinished) -> (usize, usize) {
    let counts = window.counts(unfinished);
    (counts.messages, counts.late)
}

#[test]
fn it_is_broken_by_too_large_a_share_of_enough_messages() {
    for (messages, late, broken) in [
        (99, 99, false),
        (100, 1, false),
        (100, 2, true),
        (1000, 10, false),
        (1000, 11, true),
    ] {
        let mut window = window();
        complete(&mut window, SECOND, messages, late);
        let expected = broken.then_some(ObjectiveChange::Broken);
        assert_eq!(
            window.judge(2 * SECOND, NONE),
            expected,
            "{late} of {messages}"
        );
        assert_eq!(window.is_broken(), broken);
        assert_eq!(window.judge(3 * SECOND, NONE), None, "once");
    }
}

#[test]
fn it_is_kept_again_only_when_half_as_many_are_late_as_may_be() {
    let mut window = window();
    complete(&mut window, SECOND, 1000, 11);
    assert_eq!(window.judge(SECOND, NONE), Some(ObjectiveChange::Broken));
    complete(&mut window, 11 * SECOND, 1000, 0);
    assert_eq!(window.judge(11 * SECOND, NONE), None, "11 of 2000 are late");
    complete(&mut window, 21 * SECOND, 200, 0);
    assert_eq!(window.judge(21 * SECOND, NONE), Some(ObjectiveChange::Kept));
}

#[test]
fn what_is_older_than_the_window_does_not_count() {
    let mut window = window();
    complete(&mut window, SECOND, 200, 200);
    assert_eq!(window.judge(SECOND, NONE), Some(ObjectiveChange::Broken));
    let over = WINDOW;
    complete(&mut window, over - SECOND, 100, 0);
    assert_eq!(window.counts(NONE).late, 200);
    assert_eq!(window.judge(over, NONE), Some(ObjectiveChange::Kept));
    assert_eq!(figures(&window, NONE), (100, 0));
    // Also after a long time without a look.
    complete(&mut window, over, 1, 1);
    assert_eq!(window.judge(100 * WINDOW, NONE), None);
    assert_eq!(figures(&window, NONE), (0, 0));
}

#[test]
fn a_standstill_breaks_it_without_a_completion() {
    let mut window = window();
    let late = |late| Unfinished {
        late,
        oldest: Some(31 * SECOND),
    };
    complete(&mut window, SECOND, 10_000, 0);
    assert_eq!(window.judge(10 * SECOND, late(1)), None, "others went on");
    assert_eq!(window.judge(32 * SECOND, late(0)), None, "nothing waits");
    assert_eq!(
        window.judge(32 * SECOND, late(1)),
        Some(ObjectiveChange::Broken)
    );
    complete(&mut window, 40 * SECOND, 10, 0);
    assert_eq!(
        window.judge(40 * SECOND, late(1)),
        Some(ObjectiveChange::Kept),
        "one of ten thousand is late"
    );
    // It is told once, not with each look.
    let looks = (5..15).map(|tick| window.judge(tick * RESOLUTION, late(1)));
    let changes: Vec<_> = looks.flatten().collect();
    assert_eq!(changes, [ObjectiveChange::Broken]);
}

#[test]
fn messages_that_are_late_already_count_before_they_are_completed() {
    let mut window = window();
    complete(&mut window, SECOND, 98, 0);
    let unfinished = Unfinished {
        late: 2,
        oldest: Some(40 * SECOND),
    };
    assert_eq!(figures(&window, unfinished), (100, 2));
    assert_eq!(
        window.judge(SECOND, unfinished),
        Some(ObjectiveChange::Broken)
    );
}

#[test]
fn what_is_never_completed_is_late() {
    let mut window = window();
    complete(&mut window, SECOND, 98, 0);
    window.settled(SECOND, SECOND, Settlement::Failed);
    window.settled(SECOND, SECOND, Settlement::Failed);
    assert_eq!(figures(&window, NONE), (100, 2));
    assert_eq!(window.judge(SECOND, NONE), Some(ObjectiveChange::Broken));
}

/// Handlers that fail at once leave nothing in flight.
#[test]
fn late_messages_that_are_put_back_again_and_again_are_a_standstill() {
    let mut window = window();
    complete(&mut window, SECOND, 1000, 0);
    window.settled(35 * SECOND, 20 * SECOND, Settlement::PutBack);
    assert_eq!(window.judge(40 * SECOND, NONE), None, "it is not late yet");
    window.settled(45 * SECOND, 31 * SECOND, Settlement::PutBack);
    assert_eq!(
        window.judge(50 * SECOND, NONE),
        Some(ObjectiveChange::Broken)
    );
    complete(&mut window, 60 * SECOND, 1, 0);
    assert_eq!(
        window.judge(60 * SECOND, NONE),
        Some(ObjectiveChange::Kept),
        "of a thousand"
    );
}

/// A part of the messages is late all the time, and fewer than may be.
#[test]
fn it_is_kept_again_while_some_are_late() {
    let mut window = window();
    complete(&mut window, SECOND, 1000, 11);
    assert_eq!(window.judge(SECOND, NONE), Some(ObjectiveChange::Broken));
    complete(&mut window, WINDOW, 1000, 4);
    let unfinished = Unfinished {
        late: 1,
        oldest: Some(31 * SECOND),
    };
    assert_eq!(
        window.judge(WINDOW, unfinished),
        Some(ObjectiveChange::Kept)
    );
}

#[test]
fn exactly_as_many_as_may_be_late_do_not_break_it() {
    for share in 1..100_u32 {
        let mut window = Window::new(Objective::new(f64::from(share) / 100.0, 30 * SECOND));
        complete(&mut window, SECOND, 100, 100 - share as usize);
        assert_eq!(window.judge(SECOND, NONE), None, "{share}");
        complete(&mut window, SECOND, 1, 1);
        assert_eq!(
            window.judge(SECOND, NONE),
            Some(ObjectiveChange::Broken),
            "{share}"
        );
    }
}

/// With few messages, a minute without a late one is waited for.
#[test]
fn a_few_messages_at_the_limit_do_not_have_it_change_again_and_again() {
    let mut window = window();
    let mut changes = Vec::new();
    for tick in 0..60 {
        let at = tick * RESOLUTION;
        complete(&mut window, at, 1, usize::from(tick % 2 == 0));
        let unfinished = Unfinished {
            late: usize::from(tick == 5),
            oldest: Some(31 * SECOND),
        };
        changes.extend(window.judge(at + 4 * SECOND, unfinished));
    }
    assert!(
        changes.is_empty(),
        "one in time every 20 s is no standstill: {changes:?}"
    );
    for tick in 60..120 {
        let at = tick * RESOLUTION;
        // Nothing is in time for long, then one in two.
        complete(&mut window, at, 1, usize::from(tick < 70 || tick % 2 == 0));
        let unfinished = Unfinished {
            late: usize::from(tick < 70),
            oldest: Some(31 * SECOND),
        };
        changes.extend(window.judge(at, unfinished));
    }
    assert_eq!(changes, [ObjectiveChange::Broken]);
}

/// A share of late messages that goes up and down around what is allowed.
#[test]
fn a_load_at_the_limit_breaks_it_once() {
    for share in [8, 9, 10, 11, 12] {
        let mut window = window();
        let mut changes = Vec::new();
        for tick in 0..360 {
            let at = tick * RESOLUTION;
            let late = if tick % 2 == 0 { share + 2 } else { share - 2 };
            complete(&mut window, at, 1000, late);
            changes.extend(window.judge(at, NONE));
        }
        assert!(changes.len() <= 1, "{share} of 1000: {changes:?}");
    }
}
