use queue_tests::SECOND;

use super::*;

#[test]
fn a_lease_certainly_ends_its_visibility_timeout_after_the_answer() {
    let machine = begun();
    assert_eq!(machine.known_end(), 40 * SECOND);
    assert_eq!(machine.certain_end(), 43 * SECOND);
}

#[test]
fn an_abandoned_lease_says_so_and_is_not_checked_again() {
    let mut machine = begun();
    assert!(!machine.is_abandoned());
    assert_ne!(machine.check(SECOND), Next::Nothing);
    machine.abandon();
    assert!(machine.is_abandoned());
    assert_eq!(machine.check(SECOND), Next::Nothing);
}

/// A lease of 30 s, from a receive that was sent after 10 s and answered after 13 s.
fn begun() -> Machine {
    let receive = Receive {
        asked_at: 10 * SECOND,
        answered_at: 13 * SECOND,
        visibility: 30 * SECOND,
        renewal: 30 * SECOND,
    };
    let never = Expiry {
        known: Duration::MAX,
        certain: Duration::MAX,
    };
    Machine::new(receive, Duration::MAX, never)
}
