//! The least that any agent could spend, by dynamic programming over the whole load, which no agent knows ahead.
//!
//! The optimum chooses a number of instances for each step of ten seconds. It pays for a start and for a stop as the simulated
//! instances do, but starts before the messages arrive, and may stop at once again. A message that is completed too late costs a
//! price. For each price, the cost less the price of those that may be late is at most the cost of the best plan with that share
//! in time (Lagrange's dual): the greatest of these bounds is returned.

use super::OBJECTIVE;
use super::simulator::{MOST, RATE, START_UP, STOP};

/// The length of a step, in seconds.
const STEP: usize = 10;

/// The messages between two states of the backlog, and the number of states: up to as many messages as can be completed in time by
/// all instances.
const GRAIN: f64 = RATE * STEP as f64 / 2.0;
const STATES: usize = 420;

/// Prices of a late message, in instance-seconds. One takes half of one.
const PRICES: [f64; 2] = [0.1, 0.8];

/// The least costs from a backlog on, for each number of instances.
type Costs = [f64; MOST + 1];

pub(super) fn instance_hours(arrivals: &[u32], share: f64) -> f64 {
    let steps = arrivals.chunks(STEP);
    let steps: Vec<_> = steps
        .map(|step| f64::from(step.iter().sum::<u32>()))
        .collect();
    let allowed = steps.iter().sum::<f64>() * (1.0 - share);
    let bounds = PRICES.map(|price| cost(&steps, price) - price * allowed);
    bounds.into_iter().fold(0.0, f64::max) / 3600.0
}

/// Returns the least sum of instance-seconds and prices of late messages, backwards from the end.
fn cost(arrivals: &[f64], price: f64) -> f64 {
    // What is left after the last step is late, and takes its time.
    let beyond = GRAIN * (1.0 / RATE + price);
    let stop = |instances: usize| (instances as u64 * STOP) as f64;
    let mut next: Vec<Costs> = (0..STATES)
        .map(|state| std::array::from_fn(|instances| state as f64 * beyond + stop(instances)))
        .collect();
    let young = OBJECTIVE.as_secs() as usize / STEP;
    for step in (0..arrivals.len()).rev() {
        let recent: f64 = arrivals[step.saturating_sub(young)..=step].iter().sum();
        let now = (0..STATES).map(|state| {
            let backlog = state as f64 * GRAIN + arrivals[step];
            let mut costs: Costs = std::array::from_fn(|instances| {
                let served = backlog.min(instances as f64 * RATE * STEP as f64);
                let late = (backlog - recent).max(0.0).min(served);
                let left = (backlog - served) / GRAIN;
                let below = (left as usize).min(STATES - 1);
                let part = left - below as f64;
                let low = next[below][instances];
                let slope = next
                    .get(below + 1)
                    .map_or(beyond, |above| above[instances] - low);
                (instances * STEP) as f64 + price * late + low + slope * part
            });
            // The step's number is reached by starts, from below, or by stops, from above.
            for more in (0..MOST).rev() {
                costs[more] = costs[more].min(costs[more + 1] + START_UP as f64);
            }
            for fewer in 1..=MOST {
                costs[fewer] = costs[fewer].min(costs[fewer - 1] + STOP as f64);
            }
            costs
        });
        next = now.collect();
    }
    next[0][0]
}
