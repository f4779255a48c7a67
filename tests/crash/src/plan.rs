//! The seed and the extent of a run.

/// Returns the seed: `CRASH_SEED`, or a random one. Prints it, so that a failed run can be repeated.
///
/// # Panics
/// If `CRASH_SEED` is not a number.
#[must_use]
pub fn seed() -> u64 {
    let seed = match std::env::var("CRASH_SEED") {
        Ok(seed) => seed.parse().expect("CRASH_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("CRASH_SEED={seed}");
    seed
}

/// Returns `count` times `CRASH_TIMES`, which is 1 unless set: how much more than the test command a run
/// does.
///
/// # Panics
/// If `CRASH_TIMES` is not a number.
#[must_use]
pub fn times(count: usize) -> usize {
    match std::env::var("CRASH_TIMES") {
        Ok(times) => count * times.parse::<usize>().expect("CRASH_TIMES is a number"),
        Err(_) => count,
    }
}
