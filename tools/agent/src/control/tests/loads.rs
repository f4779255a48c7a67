//! Loads for the simulator: how many messages arrive in each second.

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

pub(super) struct Load {
    pub(super) name: &'static str,
    /// The messages of each second.
    pub(super) arrivals: Vec<u32>,
    pub(super) is_judged: bool,
}

const HOUR: usize = 3600;

pub(super) fn all() -> Vec<Load> {
    let day = |second: usize| {
        let part = second as f64 / (24 * HOUR) as f64 * std::f64::consts::TAU;
        1.0 + 7.0 * (1.0 - part.cos())
    };
    let step = |second: usize| match second / HOUR {
        0 => 1.5,
        1 => 12.0,
        _ => 3.0,
    };
    vec![
        Load {
            name: "a day's curve",
            arrivals: random(1, 24 * HOUR, day),
            is_judged: true,
        },
        Load {
            name: "bursts",
            arrivals: bursts(2, 8 * HOUR),
            is_judged: true,
        },
        Load {
            name: "a step",
            arrivals: random(3, 3 * HOUR, step),
            is_judged: true,
        },
        Load {
            name: "a trickle",
            arrivals: random(4, 6 * HOUR, |_| 1.4),
            is_judged: true,
        },
        Load {
            name: "a message every five minutes",
            arrivals: random(5, 6 * HOUR, |_| 1.0 / 300.0),
            is_judged: false,
        },
    ]
}

/// Messages that arrive independently of each other, so many in a second at each time.
fn random(seed: u64, seconds: usize, rate: impl Fn(usize) -> f64) -> Vec<u32> {
    let mut random = SmallRng::seed_from_u64(seed);
    (0..seconds)
        .map(|second| {
            // Knuth's way to a number of a Poisson distribution.
            let limit = (-rate(second)).exp();
            let (mut product, mut count) = (random.random::<f64>(), 0);
            while product > limit {
                product *= random.random::<f64>();
                count += 1;
            }
            count
        })
        .collect()
}

/// Nothing, and from time to time many messages at once.
fn bursts(seed: u64, seconds: usize) -> Vec<u32> {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut arrivals = vec![0; seconds];
    let mut at = random.random_range(60..600);
    while at < seconds {
        arrivals[at] = random.random_range(300..1800);
        at += random.random_range(480..1800);
    }
    arrivals
}
