//! The named points at which processes abort.

use queue_crash::packs::Marks;
use queue_crash::sabotage::Point;
use queue_crash::worker::Role;

pub(crate) const STEPS: &[(Point, Role)] = &[
    (Point::BeforePut, Role::Produce),
    (Point::AfterPut, Role::Produce),
    (Point::AfterReceive, Role::Listen),
    (Point::AfterReceive, Role::Accept),
    (Point::BeforeCompletion, Role::Listen),
    (Point::BeforeCompletion, Role::Accept),
    (Point::AfterCompletion, Role::Listen),
    (Point::AfterCompletion, Role::Accept),
    (Point::BeforePutBack, Role::Listen),
    (Point::BeforePutBack, Role::Accept),
    (Point::AfterPutBack, Role::Listen),
    (Point::AfterPutBack, Role::Accept),
];

pub(crate) const BETWEEN_STEPS: &[(Point, Role)] = &[
    (Point::BetweenCopyAndDelete, Role::Accept),
    (Point::BetweenCopyAndDelete, Role::Listen),
    (Point::BetweenCopyAndDelete, Role::Redrive),
    (Point::BetweenFollowUpAndDelete, Role::Accept),
    (Point::BetweenFollowUpAndDelete, Role::Listen),
];

/// What a consumer aborts at while a few packs wait that nobody has received, and what it aborts at after that.
pub(crate) fn of_packs(marks: Marks) -> [Vec<(Point, Role)>; 2] {
    let settled = match marks {
        Marks::Beside => [Point::BeforeItemSettled, Point::AfterItemSettled],
        Marks::InHeader => [Point::BeforeMark, Point::AfterMark],
    };
    let before = [
        Point::BeforePackPut,
        Point::BeforeGiveBack,
        settled[0],
        Point::BeforeSplit,
        Point::BeforeLeaving,
    ];
    let after = [
        Point::AfterPackPut,
        Point::AfterGiveBack,
        Point::AfterPackReceive,
        Point::AfterSplit,
        settled[1],
        Point::AfterLeaving,
    ];
    let role = |point| match point {
        Point::BeforePackPut | Point::AfterPackPut => (point, Role::Pack),
        _ => (point, Role::Unpack),
    };
    [
        before.into_iter().map(role).collect(),
        after.into_iter().map(role).collect(),
    ]
}

pub(crate) fn all() -> Vec<(Point, Role)> {
    let of_packs = [Marks::Beside, Marks::InHeader]
        .into_iter()
        .flat_map(of_packs);
    let others = [STEPS, BETWEEN_STEPS].concat();
    others.into_iter().chain(of_packs.flatten()).collect()
}
