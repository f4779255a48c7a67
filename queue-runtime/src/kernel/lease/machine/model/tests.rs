use super::*;

/// Long histories with few settlements, and short ones with many.
fn scenes(bug: Option<Bug>) -> Vec<Scene> {
    let scene = |distinct, (received_at, life, renew_until), (end, faults, calls)| Scene {
        distinct,
        received_at,
        life,
        renew_until,
        end,
        faults,
        calls,
        bug,
    };
    vec![
        scene(true, (0, None, 20), (9, 2, 0)),
        scene(true, (1, None, 3), (8, 1, 1)),
        scene(true, (1, Some(8), 20), (9, 1, 1)),
        scene(false, (0, Some(7), 20), (11, 2, 0)),
        scene(false, (1, None, 20), (5, 2, 1)),
        scene(true, (0, None, 20), (4, 2, 2)),
    ]
}

/// Returns the transitions that the table in the documentation lists.
fn documented() -> Taken {
    let documentation = include_str!("../../../../../../docs/states.md");
    let rows = documentation.lines();
    let rows = rows.skip_while(|line| !line.starts_with("| state | event | next state |"));
    let mut transitions = Taken::new();
    for row in rows.skip(2).take_while(|line| line.starts_with('|')) {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let (states, event, next) = (cells[1], cells[2], cells[3]);
        let states = match states {
            "any" => "Held, Doubtful, Settled, Lost",
            states => states,
        };
        for state in states.split(", ") {
            let next = match next {
                "" | "unchanged" => state,
                next => next,
            };
            transitions.insert((state, event, next));
        }
    }
    transitions
}

#[test]
fn every_history_keeps_the_promises_and_takes_every_documented_transition() {
    let mut taken = Taken::new();
    let worlds = scenes(None).into_iter().map(|scene| {
        let explored = explore(scene, &mut taken);
        explored.unwrap_or_else(|wrong| panic!("{wrong}"))
    });
    let worlds: usize = worlds.sum();
    assert!(worlds > 100_000, "{worlds} worlds are too few");
    let documented = documented();
    let missing: Vec<_> = documented.difference(&taken).collect();
    let unknown: Vec<_> = taken.difference(&documented).collect();
    assert!(missing.is_empty(), "not taken: {missing:#?}");
    assert!(unknown.is_empty(), "not documented: {unknown:#?}");
}

#[test]
fn planted_bugs_are_detected() {
    for (bug, expected) in [
        (
            Bug::CertainEndStays,
            "the lease lasts longer than its certain end",
        ),
        (
            Bug::StaleReceiptProvesLoss,
            "a stale receipt is taken for a loss",
        ),
        (
            Bug::RenewsInVain,
            "the certain end is put off again and again",
        ),
        (Bug::DoubtStays, "the doubt is not that of the requests"),
        (Bug::RenewsAfterTheEnd, "a renewal is sent after the end"),
        (Bug::RepeatsAtOnce, "a renewal is repeated at once"),
        (
            Bug::GoneIsSettled,
            "reported as settled, but not carried out",
        ),
        (
            Bug::KnownEndFromTheAnswer,
            "the lease ends before its known end",
        ),
    ] {
        let mut scenes = scenes(Some(bug)).into_iter();
        let wrong = scenes.find_map(|scene| explore(scene, &mut Taken::new()).err());
        let wrong = wrong.expect("it is a bug");
        assert!(wrong.starts_with(expected), "{bug:?}: {wrong}");
    }
}
