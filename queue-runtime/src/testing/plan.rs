use std::collections::{HashMap, VecDeque};

use queue_core::Operation;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::fault::Fault;

/// The scripted and random faults, and a record of the injected ones.
#[derive(Debug)]
pub(super) struct Plan {
    random: StdRng,
    /// Faults for the next calls, oldest first.
    pub(super) next: HashMap<Operation, VecDeque<(u32, Fault)>>,
    pub(super) every: HashMap<Operation, Fault>,
    pub(super) sometimes: Vec<(Operation, f64, Fault)>,
    pub(super) calls: HashMap<Operation, usize>,
    pub(super) injected: Vec<(Operation, Fault)>,
}

impl Plan {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            next: HashMap::new(),
            every: HashMap::new(),
            sometimes: Vec::new(),
            calls: HashMap::new(),
            injected: Vec::new(),
        }
    }

    pub(super) fn heal(&mut self) {
        self.next.clear();
        self.every.clear();
        self.sometimes.clear();
    }

    /// Counts a call and chooses its fault.
    pub(super) fn call(&mut self, operation: Operation) -> Option<Fault> {
        *self.calls.entry(operation).or_default() += 1;
        self.take_next(operation)
            .or_else(|| self.every.get(&operation).cloned())
            .or_else(|| self.draw(operation))
    }

    fn take_next(&mut self, operation: Operation) -> Option<Fault> {
        let next = self.next.get_mut(&operation)?;
        while next.front().is_some_and(|(calls, _)| *calls == 0) {
            next.pop_front();
        }
        let (calls, fault) = next.front_mut()?;
        *calls -= 1;
        Some(fault.clone())
    }

    fn draw(&mut self, operation: Operation) -> Option<Fault> {
        let Self {
            random, sometimes, ..
        } = self;
        sometimes
            .iter()
            .filter(|(of, ..)| *of == operation)
            .find(|(_, probability, _)| random.random_bool(*probability))
            .map(|(.., fault)| fault.clone())
    }
}
