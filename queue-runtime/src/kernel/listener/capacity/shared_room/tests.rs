use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::poll;
use tokio::time::timeout;

use super::*;

/// Returns the future's output. In paused time, one that waits for ever fails at once.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    let in_time = timeout(Duration::from_secs(1), future).await;
    in_time.expect("it waits for nothing that comes")
}

fn state(lane: &Lane) -> (usize, Vec<usize>) {
    let state = lane.room.state.hold();
    let waiting = state.lanes.iter().map(|lane| lane.waiting).collect();
    (state.free, waiting)
}

/// Gives room for one message at a time to lanes that always wait, and returns who got it.
fn served(weights: &[usize], messages: usize) -> Vec<usize> {
    let lanes = SharedRoom::lanes(1, weights);
    let mut state = lanes[0].room.state.hold();
    (0..weights.len()).for_each(|lane| state.begin_to_wait(lane));
    let mut serve = || {
        let lane = state.next().expect("all wait");
        assert_eq!(state.take(lane, 1), 1);
        state.free += 1;
        lane
    };
    (0..messages).map(|_| serve()).collect()
}

#[test]
fn lanes_that_wait_get_room_by_their_weights_and_in_turn() {
    assert_eq!(served(&[3, 1], 8), [0, 1, 0, 0, 0, 1, 0, 0]);
    for weights in [[1, 1, 1], [8, 4, 1], [1_000, 10, 1]] {
        let total: usize = weights.iter().sum();
        let served = served(&weights, 10 * total);
        for (lane, weight) in weights.into_iter().enumerate() {
            let got = served.iter().filter(|served| **served == lane).count();
            assert!(
                got.abs_diff(10 * weight) <= 1 + weight / 100,
                "{weights:?}: {got}"
            );
            // The longest that it waits for the others.
            let longest = served.split(|served| *served == lane).map(<[_]>::len).max();
            let bound = total.div_ceil(weight) + weights.len();
            assert!(longest <= Some(bound), "{weights:?}, {lane}: {longest:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_no_other_lane_waits_for_goes_to_whoever_asks() {
    let lanes = SharedRoom::lanes(8, &[9, 1]);
    assert_eq!(soon(lanes[1].acquire(5)).await, 5);
    assert_eq!(soon(lanes[1].acquire(5)).await, 3);
    assert_eq!(state(&lanes[0]), (0, vec![0, 0]));
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_begins_to_wait_is_next_and_gets_back_nothing_from_before() {
    let lanes = SharedRoom::lanes(1, &[2, 1]);
    for _ in 0..100 {
        assert_eq!(soon(lanes[1].acquire(1)).await, 1);
        lanes[1].release(1);
    }
    assert_eq!(soon(lanes[1].acquire(1)).await, 1);
    let (mut bulk, mut urgent) = (pin!(lanes[1].acquire(1)), pin!(lanes[0].acquire(9)));
    assert!(poll!(&mut bulk).is_pending() && poll!(&mut urgent).is_pending());
    lanes[1].release(5);
    // Two to one, and of equal ones the first; none for the hundred before.
    assert_eq!((soon(urgent).await, soon(bulk).await), (3, 1));
    assert_eq!(state(&lanes[0]), (1, vec![0, 0]));
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_stops_waiting_lets_others_go_on_and_keeps_no_room() {
    let lanes = SharedRoom::lanes(1, &[9, 1]);
    assert_eq!(soon(lanes[0].acquire(1)).await, 1);
    let mut bulk = pin!(lanes[1].acquire(1));
    {
        let mut urgent = pin!(lanes[0].acquire(1));
        assert!(poll!(&mut urgent).is_pending() && poll!(&mut bulk).is_pending());
        lanes[0].release(1);
        // It is next, and about to take the room.
        assert!(poll!(&mut urgent).is_pending() && poll!(&mut bulk).is_pending());
    }
    assert_eq!(soon(bulk).await, 1);
    assert_eq!(state(&lanes[0]), (0, vec![0, 0]));
}

#[tokio::test(start_paused = true)]
async fn empty_receives_do_not_count() {
    let lanes = SharedRoom::lanes(4, &[1, 1]);
    for _ in 0..1_000 {
        assert_eq!(soon(lanes[0].acquire(4)).await, 4);
        lanes[0].give_back(4);
    }
    let state = lanes[0].room.state.hold();
    assert!(state.lanes[0].pass <= state.now + 4 * STRIDE, "{state:?}");
    drop(state);
    assert!(
        lanes[1].acquire(4).now_or_never().is_none(),
        "it lets all room come first"
    );
}
