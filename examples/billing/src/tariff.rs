//! What a quantity costs: tariffs with steps.

/// A meter: its name and the steps of its tariff. A step is the first unit that is not of it, and the price of each of its units
/// in millionths of a cent.
pub(crate) type Meter = (&'static str, &'static [(i64, i64)]);

/// All meters.
pub(crate) const METERS: [Meter; 4] = [
    (
        "requests",
        &[(1_000, 0), (50_000, 1_900), (i64::MAX, 1_250)],
    ),
    ("storage-mib", &[(10_240, 21_333), (i64::MAX, 17_777)]),
    (
        "cpu-seconds",
        &[(100, 0), (3_600, 140_000), (i64::MAX, 99_999)],
    ),
    ("egress-mib", &[(i64::MAX, 87_899)]),
];

/// The largest quantity of a record.
pub(crate) const MAX_QUANTITY: i64 = 1_000_000_000;

/// The parts of a cent.
pub(crate) const PARTS: i64 = 1_000_000;

/// Returns the price of a quantity in cents. The sum over the steps is rounded once, half a cent upwards.
pub(crate) fn price(meter: &str, quantity: i64) -> Result<i64, String> {
    let known = METERS.iter().find(|known| known.0 == meter);
    let (_, steps) = known.ok_or_else(|| format!("there is no meter `{meter}`"))?;
    if !(0..=MAX_QUANTITY).contains(&quantity) {
        return Err(format!(
            "the quantity {quantity} is not from 0 to {MAX_QUANTITY}"
        ));
    }
    let (mut from, mut parts) = (0, 0);
    for (below, price) in *steps {
        parts += (quantity.min(*below) - from).max(0) * price;
        from = *below;
    }
    Ok((parts + PARTS / 2) / PARTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_unit_costs_the_price_of_its_step_and_the_sum_is_rounded_once() {
        let in_cents = |meter: &str, quantities: &[i64]| -> Vec<_> {
            let prices = quantities.iter().map(|quantity| price(meter, *quantity));
            prices.collect::<Result<_, _>>().expect("prices")
        };
        // 0.4997 and 0.5016 cents; 93.1 cents, and half a cent more.
        let requests = in_cents("requests", &[0, 1_000, 1_263, 1_264, 50_000, 50_400]);
        assert_eq!(requests, [0, 0, 0, 1, 93, 94]);
        // 490 and 3,639.9636 cents.
        assert_eq!(in_cents("cpu-seconds", &[100, 40_000]), [0, 4_130]);
        assert_eq!(in_cents("egress-mib", &[MAX_QUANTITY]), [87_899_000]);
    }
}
