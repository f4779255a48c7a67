//! Usage of a seed, and the invoices that it must lead to.

use std::collections::{BTreeMap, HashSet};

use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use crate::messages::{Usage, WorkItem};
use crate::tariff::{MAX_QUANTITY, METERS, PARTS};

/// Of so many records, one is there twice; of so many items, one is submitted twice; of so many tenants, one has a record that
/// cannot be priced, and at least one.
const DUPLICATE_RECORDS: usize = 100;
const DUPLICATE_ITEMS: usize = 40;
const POISONED_TENANTS: usize = 50;

/// The least number of records of a tenant.
pub(crate) const MIN_RECORDS: usize = 20;

/// What is submitted, one phase after the other: the first month; late records of it, and failed items corrected; the second
/// month.
#[derive(Debug, Clone)]
pub(crate) struct Workload {
    /// The work items of each phase, in the order of their submission.
    pub(crate) phases: Vec<Vec<WorkItem>>,
}

/// An invoice: its amount in cents and its number of records, or `None` if it has failed.
pub(crate) type Bill = Option<(i64, i64)>;

/// What a workload must lead to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Expected {
    /// The invoices by tenant and month.
    pub(crate) invoices: BTreeMap<(i64, i64), Bill>,
    /// How many records are priced in each phase: each once in each item.
    pub(crate) priced: Vec<i64>,
}

impl Workload {
    /// Creates the usage of so many tenants: `records` records, and some of them repeatedly.
    pub(crate) fn new(seed: u64, records: usize, tenants: usize) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut tenants: Vec<_> = (0..tenants as i64).collect();
        tenants.shuffle(&mut random);
        let mut phases = vec![Vec::new(), Vec::new(), Vec::new()];
        for (number, tenant) in tenants.iter().enumerate() {
            let all = tenants.len();
            let share = records / all + usize::from(number < records % all);
            let mut usages: Vec<_> = (0..share).map(|id| usage(id as i64, &mut random)).collect();
            let mut second = usages.split_off(share - share / 10);
            let months = [1, 2, 2, 2].into_iter().cycle();
            (second.iter_mut().zip(months)).for_each(|(usage, month)| usage.month = month);
            let mut late = usages.split_off(usages.len() - share / 20);
            let mut first = usages.clone();
            if number < all.div_ceil(POISONED_TENANTS) {
                let mut poison = usage(-1, &mut random);
                poison.quantity = -1 - poison.quantity;
                if number % 2 == 0 {
                    (poison.meter, poison.quantity) = ("water".to_owned(), 1);
                }
                first.push(poison);
                phases[1].push((*tenant, 1, usages));
            } else {
                late.extend(usages.into_iter().take(2));
            }
            phases[0].push((*tenant, 1, first));
            phases[1].push((*tenant, 1, late));
            phases[2].push((*tenant, 2, second));
        }
        let mut items = 1..;
        let mut submit = |phase: Vec<(i64, i64, Vec<Usage>)>| -> Vec<WorkItem> {
            let numbered = phase.into_iter().zip(items.by_ref());
            let phase = numbered.map(|((tenant, month, records), item)| WorkItem {
                item,
                tenant,
                month,
                submitted_at: 0,
                records: repeated(records, DUPLICATE_RECORDS, &mut random),
            });
            let phase = phase.collect();
            repeated(phase, DUPLICATE_ITEMS, &mut random)
        };
        let phases = phases.into_iter().map(&mut submit).collect();
        Self { phases }
    }

    /// Computes the invoices from the whole workload, sharing nothing with the roles but the table of tariffs.
    pub(crate) fn expected(&self) -> Expected {
        let (mut expected, mut failed) = (Expected::default(), HashSet::new());
        // By tenant and number: the month, the price, the item and whether it is billed.
        let mut known = BTreeMap::<(i64, i64), (i64, i64, i64, bool)>::new();
        for phase in &self.phases {
            let items: BTreeMap<_, _> = phase.iter().map(|work| (work.item, work)).collect();
            let mut priced = HashSet::new();
            for (item, work) in &items {
                for usage in &work.records {
                    let Some(cents) = cents(&usage.meter, usage.quantity) else {
                        failed.insert(*item);
                        continue;
                    };
                    priced.insert((item, usage.id));
                    let entry = (usage.month, cents, *item, false);
                    let old = known.entry((work.tenant, usage.id)).or_insert(entry);
                    if !old.3 && failed.contains(&old.2) {
                        *old = entry;
                    }
                }
            }
            expected.priced.push(priced.len() as i64);
            for (item, work) in &items {
                let (tenant, month) = (work.tenant, work.month);
                if expected.invoices.contains_key(&(tenant, month)) {
                    continue;
                }
                let (is_good, mut bill) = (!failed.contains(item), (0, 0));
                let own = known.range_mut((tenant, i64::MIN)..=(tenant, i64::MAX));
                for entry in own.map(|(_, entry)| entry).filter(|_| is_good) {
                    if entry.0 <= month && !entry.3 && !failed.contains(&entry.2) {
                        bill = (bill.0 + entry.1, bill.1 + 1);
                        entry.3 = true;
                    }
                }
                let bill = is_good.then_some(bill);
                expected.invoices.insert((tenant, month), bill);
            }
        }
        expected
    }
}

fn usage(id: i64, random: &mut SmallRng) -> Usage {
    let (meter, _) = METERS[random.random_range(0..METERS.len())];
    // Each order of magnitude has as many quantities.
    let most = 10_i64.pow(random.random_range(1..=6));
    Usage {
        id,
        month: 1,
        meter: meter.to_owned(),
        quantity: random.random_range(0..=most),
    }
}

/// Shuffles values, one of so many of them twice.
fn repeated<T: Clone>(mut all: Vec<T>, one_of: usize, random: &mut SmallRng) -> Vec<T> {
    let twice = (0..all.len()).filter(|_| random.random_range(0..one_of) == 0);
    let twice: Vec<_> = twice.map(|at| all[at].clone()).collect();
    all.extend(twice);
    all.shuffle(random);
    all
}

/// The price by the differences between the steps: all units at the price of the last step that they reach, and those below
/// each bound that they reach at what the step before costs more.
fn cents(meter: &str, quantity: i64) -> Option<i64> {
    let (_, steps) = METERS.into_iter().find(|(name, _)| *name == meter)?;
    if !(0..=MAX_QUANTITY).contains(&quantity) {
        return None;
    }
    let reached = steps.iter().filter(|step| step.0 < quantity).count();
    let mut parts = i128::from(quantity) * i128::from(steps[reached].1);
    for pair in steps[..=reached].windows(2) {
        parts += i128::from(pair[0].0) * i128::from(pair[0].1 - pair[1].1);
    }
    let (whole, rest) = (parts / i128::from(PARTS), parts % i128::from(PARTS));
    i64::try_from(whole + i128::from(2 * rest >= i128::from(PARTS))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tariff::price;

    #[test]
    fn both_ways_to_compute_a_price_agree() {
        let mut random = SmallRng::seed_from_u64(7);
        for (meter, steps) in METERS {
            let near = steps.iter().flat_map(|step| [step.0 - 1, step.0]);
            let any = (0..1_000).map(|_| random.random_range(-10..=MAX_QUANTITY + 10));
            for quantity in near.chain(any) {
                let one = price(meter, quantity).ok();
                assert_eq!(cents(meter, quantity), one, "{quantity} {meter}");
            }
        }
    }
}
