//! Every combination of what can be known of a message, against the table in `docs/settlement.md`.

use super::*;

/// The delays and lifetimes of the cases. A message expires before or after each of the delays.
const RETRY: Duration = Duration::from_secs(10);
const ASKED: Duration = Duration::from_secs(20);
const AGE: Duration = Duration::from_secs(100);
const SOON: Duration = Duration::from_millis(500);
const LATE: Duration = Duration::from_secs(1_000_000);

/// What a case is made of, in the order in which the table asks for it.
const QUESTIONS: [(&str, &[&str]); 8] = [
    (
        "transaction",
        &[
            "no transaction",
            "a transaction was committed",
            "a transaction was rolled back",
        ],
    ),
    ("breaker", &["the attempt counts", "the breaker is open"]),
    ("attempt", &["attempts are left", "it was the last attempt"]),
    (
        "room",
        &[
            "there is room for a record",
            "there is no room for a record",
        ],
    ),
    (
        "life",
        &["it does not expire before", "it would expire before"],
    ),
    (
        "patience",
        &["`version_patience` lasts", "`version_patience` is over"],
    ),
    ("caller", &["a listener", "`accept`"]),
    (
        "handler",
        &["the handler has ended", "the handler still runs"],
    ),
];

type Case = [usize; QUESTIONS.len()];

fn ends() -> Vec<(&'static str, End)> {
    let error = || "no".to_owned();
    let reason = PoisonReason::Rejected;
    vec![
        ("completed", End::Completed),
        ("failed", End::failed(error())),
        (
            "rejected, undecodable or damaged",
            End::Unusable {
                reason,
                error: Some(error()),
            },
        ),
        (
            "received without attempts left",
            End::OutOfAttempts {
                reason: PoisonReason::Crashed,
                error: Some(error()),
            },
        ),
        (
            "postponed",
            End::Postponed {
                after: ASKED,
                reason: Some(error()),
            },
        ),
        (
            "for a newer program",
            End::NewerProgram {
                reason: PoisonReason::NewerVersion,
                error: error(),
            },
        ),
        ("released", End::Released),
        ("its lease is lost", End::LeaseLost),
    ]
}

/// Calls `look` with the plan for a case.
fn planned<T>(end: &End, case: Case, look: impl FnOnce(&Plan<'_>) -> T) -> T {
    let [
        transaction,
        breaker,
        attempt,
        room,
        life,
        patience,
        caller,
        handler,
    ] = case;
    let retry = RetryPolicy::fixed(RETRY);
    let now = Timestamp::UNIX_EPOCH + AGE;
    let known = Known {
        end,
        caller: [Caller::Listener, Caller::Accept][caller],
        transaction: [Promise::None, Promise::Committed, Promise::RolledBack][transaction],
        counts: breaker == 0,
        still_runs: handler == 1,
        attempt: [1, 3][attempt],
        threshold: 3,
        attempts: &AttemptRecord::default(),
        dequeue_count: 7,
        has_room: room == 0,
        expires_in: Some([LATE, SOON][life]),
        now,
        inserted_at: Timestamp::UNIX_EPOCH,
        retry: &retry,
        version_patience: match (patience, room) {
            (0, _) => LATE,
            // Without a record, the patience is counted from when the message was stored.
            (_, 0) => Duration::ZERO,
            (_, _) => AGE,
        },
        random: 1.0,
    };
    let plan = plan(&known);
    if completes(end, known.transaction) {
        assert_eq!(plan.step, Step::Complete, "{known:?}");
    }
    look(&plan)
}

fn cases() -> impl Iterator<Item = Case> {
    let count: usize = QUESTIONS.iter().map(|(_, answers)| answers.len()).product();
    (0..count).map(|mut number| {
        QUESTIONS.map(|(_, answers)| {
            let answer = number % answers.len();
            number /= answers.len();
            answer
        })
    })
}

fn put_back(put_back: &PutBack<'_>) -> String {
    let delay = match put_back.delay {
        _ if put_back.keeps_place() => "where it was",
        Duration::ZERO => "at once",
        RETRY => "after the retry delay",
        ASKED => "after the requested delay",
        AGE => "after as long as it has been stored",
        _ => "after 1 s, doubling",
    };
    let record = match put_back.tally {
        Tally::Failed { .. } => "as a failure",
        Tally::Forgiven(_) => "forgiven, with the error",
        Tally::Released | Tally::Postponed(_) => "forgiven",
        Tally::NewerVersion { .. } => "forgiven, with the time of the first postponement",
        Tally::Judged => "forgiven, still marked",
        Tally::Exhausted { .. } => "with all receives as failures",
    };
    format!("put back {delay}, {record}")
}

fn step(plan: &Plan<'_>) -> String {
    match &plan.step {
        Step::Nothing => "nothing is left to do".to_owned(),
        Step::Complete => "its follow-ups are put, and it is deleted".to_owned(),
        Step::PutBack(change) => put_back(change),
        Step::Poison {
            reason,
            unless_moved,
            ..
        } => {
            let moved = format!("moved to the poison queue: {reason}");
            match unless_moved {
                Some(change) => format!("{moved}; if that fails: {}", put_back(change)),
                None => moved,
            }
        }
        Step::Leave => "left to its lease".to_owned(),
    }
}

fn row(plan: &Plan<'_>) -> String {
    let claim = match plan.claim {
        ClaimEnd::Record => "the work is recorded",
        ClaimEnd::Release => "released",
        ClaimEnd::Leave => "left to its lease",
    };
    format!("{} | {claim}", step(plan))
}

/// The conditions of a row, and what they lead to.
type Row = (Vec<String>, String);

/// Returns the rows for an end below these answers. A question is asked only where its
/// answer makes a difference, and equal answers are one.
fn rows(end: &End, case: Case, asked: usize) -> Vec<Row> {
    let Some((_, answers)) = QUESTIONS.get(asked) else {
        return vec![(Vec::new(), planned(end, case, row))];
    };
    let mut groups: Vec<(Vec<&str>, Vec<Row>)> = Vec::new();
    for (answer, text) in answers.iter().enumerate() {
        let mut case = case;
        case[asked] = answer;
        if is_in_text(asked, answer) {
            continue;
        }
        let below = rows(end, case, asked + 1);
        match groups.iter_mut().find(|(_, rows)| *rows == below) {
            Some((texts, _)) => texts.push(text),
            None => groups.push((vec![text], below)),
        }
    }
    let decides = groups.len() > 1;
    let named = groups.into_iter().flat_map(|(texts, rows)| {
        let condition = decides.then(|| texts.join(" or "));
        rows.into_iter().map(move |(below, becomes)| {
            let conditions = condition.iter().cloned().chain(below).collect();
            (conditions, becomes)
        })
    });
    named.collect()
}

/// The two answers that make the same difference for every end, of which the page tells before the table.
fn is_in_text(question: usize, answer: usize) -> bool {
    matches!(
        QUESTIONS[question].1[answer],
        "a transaction was committed" | "the handler still runs"
    )
}

#[test]
fn the_documentation_has_every_row() {
    let mut expected = Vec::new();
    for (name, end) in ends() {
        for (conditions, becomes) in rows(&end, Case::default(), 0) {
            expected.push(format!(
                "| {name} | {} | {becomes} |",
                conditions.join("; ")
            ));
        }
    }
    let documentation = include_str!("../../../../../docs/settlement.md");
    let mut found = documentation.lines();
    found.find(|line| line.starts_with("| how it ended | if |"));
    let found: Vec<_> = found
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .collect();
    assert!(
        found == expected,
        "the table should be\n{}",
        expected.join("\n")
    );
}

/// Whatever is known: no message is lost, none is completed unless its handler succeeded, and none is put back for
/// longer than it lives.
#[test]
fn in_every_case_the_message_is_kept_or_its_work_is_done() {
    for (name, end) in ends() {
        for case in cases() {
            let [transaction, .., life, _, caller, handler] = case;
            planned(&end, case, |plan| {
                let committed = transaction == 1;
                let context = format!("{name} {case:?}: {plan:?}");
                assert_eq!(plan.step == Step::Nothing, committed, "{context}");
                if plan.step == Step::Complete {
                    let failed = transaction == 2 && caller == 0;
                    assert!(end == End::Completed && !failed, "{context}");
                    assert_eq!(plan.claim, ClaimEnd::Record, "{context}");
                }
                if let Step::PutBack(change) = &plan.step {
                    let hidden = change.delay > Duration::ZERO && life == 1;
                    assert!(!hidden, "it would expire unseen: {context}");
                }
                let mut ended = case;
                ended[7] = 0;
                let step = format!("{:?}", plan.step);
                planned(&end, ended, |plan| {
                    assert_eq!(format!("{:?}", plan.step), step)
                });
                if handler == 1 {
                    assert_ne!(plan.claim, ClaimEnd::Release, "its work goes on: {context}");
                }
            });
        }
    }
}

/// Returns the step for a message that was received so often, and does not expire.
fn received(end: &End, receives: usize, counts: bool, look: impl FnOnce(&PutBack<'_>)) {
    let retry = RetryPolicy::fixed(RETRY);
    let known = Known {
        end,
        caller: Caller::Listener,
        transaction: Promise::None,
        counts,
        still_runs: false,
        attempt: 1,
        threshold: usize::MAX,
        attempts: &AttemptRecord::default(),
        dequeue_count: receives,
        has_room: true,
        expires_in: None,
        now: Timestamp::UNIX_EPOCH,
        inserted_at: Timestamp::UNIX_EPOCH,
        retry: &retry,
        version_patience: LATE,
        random: 1.0,
    };
    match &plan(&known).step {
        Step::PutBack(put_back) => look(put_back),
        other => panic!("{other:?}"),
    }
}

fn failed(delay: Delay) -> End {
    End::Failed {
        error: "no".to_owned(),
        failure: None,
        delay,
    }
}

#[test]
fn the_delay_is_that_of_the_handler_the_classifier_or_the_policy() {
    for (delay, expected, asked) in [
        (Delay::Usual, RETRY, None),
        (Delay::ByPolicy(RetryPolicy::fixed(AGE)), AGE, None),
        // A repeat is recognised by what was asked for.
        (
            Delay::Exactly(Duration::MAX),
            Duration::MAX,
            Some(Duration::MAX),
        ),
    ] {
        received(&failed(delay), 1, true, |put_back| {
            let purpose = Purpose::Retry {
                after: asked,
                error: fingerprint("no"),
            };
            assert_eq!((put_back.delay, put_back.purpose), (expected, purpose));
        });
    }
}

/// Whatever for: postponed, failed, while the breaker is open, handed back, or waiting for what it needs.
#[test]
fn what_comes_back_again_and_again_is_slowed_down_to_once_a_second_and_told_once() {
    let postponed = |after| End::Postponed {
        after,
        reason: None,
    };
    let cases = [
        (postponed(Duration::ZERO), true),
        (postponed(Duration::from_millis(3)), true),
        (failed(Delay::Exactly(Duration::ZERO)), true),
        (
            failed(Delay::ByPolicy(RetryPolicy::fixed(Duration::ZERO))),
            true,
        ),
        (failed(Delay::Exactly(Duration::ZERO)), false),
        (End::Released, true),
    ];
    for (end, counts) in cases {
        let (mut told, mut last, mut all) = (0, Duration::ZERO, Duration::ZERO);
        for receives in 1..=100 {
            received(&end, receives, counts, |put_back| {
                let unslowed = receives <= UNSLOWED;
                assert!(!unslowed || put_back.delay <= Duration::from_millis(3));
                assert_eq!(put_back.keeps_place(), unslowed && end == End::Released);
                assert!(put_back.delay >= last, "{end:?}: {receives}");
                last = put_back.delay;
                all += put_back.delay;
                told += u32::from(put_back.is_slowed);
            });
        }
        assert_eq!((told, last), (1, LONGEST_DELAY), "{end:?}");
        assert!(all > 50 * LONGEST_DELAY, "{end:?}: {all:?}");
    }
    for after in [LONGEST_DELAY, ASKED] {
        received(&postponed(after), 100, true, |put_back| {
            assert_eq!((put_back.delay, put_back.is_slowed), (after, false));
        });
    }
}
