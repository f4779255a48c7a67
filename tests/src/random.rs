use rand::distr::{Alphanumeric, SampleString as _};

/// Returns random text of this length, which compression makes shorter by no more than a quarter.
#[must_use]
pub fn incompressible(length: usize) -> String {
    Alphanumeric.sample_string(&mut rand::rng(), length)
}
