use std::sync::atomic::{AtomicUsize, Ordering};

use crate::policy::{InstanceTarget, Load};
use crate::settings::InvalidSetting;

/// The number of instances that are wanted.
#[derive(Debug)]
pub(crate) struct Advice {
    target: InstanceTarget,
    wanted: AtomicUsize,
}

impl Advice {
    pub(crate) fn new(target: InstanceTarget) -> Result<Self, InvalidSetting> {
        let (least, most) = target.range().into_inner();
        InvalidSetting::within("maximum number of instances", most, least, usize::MAX)?;
        Ok(Self {
            wanted: AtomicUsize::new(least),
            target,
        })
    }

    pub(super) fn wanted(&self) -> usize {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Returns whether fewer instances may be wanted soon, although this one has nothing to do.
    pub(super) fn is_above_least(&self) -> bool {
        self.wanted() > *self.target.range().start()
    }

    /// Finds out how many instances are wanted. Returns the number before and now.
    pub(super) fn update(&self, load: &Load) -> (usize, usize) {
        let to = self.target.instances(load);
        (self.wanted.swap(to, Ordering::Relaxed), to)
    }
}
