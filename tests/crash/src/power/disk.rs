use std::collections::BTreeMap;
use std::path::Path;

use rand::RngExt as _;
use rand::rngs::SmallRng;

use super::trace::{Change, Operation};

/// The unit that a disk writes whole.
const SECTOR: usize = 512;

/// The files at a moment of a trace: what is durable, and what is not yet.
#[derive(Debug, Default)]
pub struct Disk {
    files: BTreeMap<String, File>,
    /// Files whose removal is not durable yet, with its time.
    removed: BTreeMap<String, (u64, File)>,
    /// The start of the syncs under way, by thread.
    syncing: BTreeMap<u64, u64>,
    /// The number of operations carried out.
    now: u64,
}

#[derive(Debug, Default, Clone)]
struct File {
    durable: Vec<u8>,
    /// Changes that no sync covers, each with its time.
    pending: Vec<(u64, Change)>,
}

/// What becomes of changes that no sync covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// All changes are lost.
    Lost,
    /// All changes are carried out.
    Kept,
    /// Each change is lost or carried out by chance, whatever becomes of earlier ones.
    Any,
    /// As `Any`, also for each sector of a write.
    Torn,
}

/// The files that a power loss leaves.
pub type Image = BTreeMap<String, Vec<u8>>;

impl Fate {
    /// All fates.
    pub const ALL: [Self; 4] = [Self::Lost, Self::Kept, Self::Any, Self::Torn];
}

impl Disk {
    /// Carries out the next operation of a trace.
    pub fn carry_out(&mut self, operation: &Operation) {
        self.now += 1;
        let name = &operation.file;
        match &operation.change {
            Change::SyncBegun(thread) => drop(self.syncing.insert(*thread, self.now)),
            Change::Synced(thread) => {
                let since = self.syncing.remove(thread).expect("the sync has begun");
                if name == "." {
                    self.removed.retain(|_, (at, _)| *at > since);
                } else {
                    self.file(name).sync(since);
                }
            }
            Change::Unlink => {
                let file = self.files.remove(name).unwrap_or_default();
                self.removed.insert(name.clone(), (self.now, file));
            }
            change => {
                let now = self.now;
                self.file(name).pending.push((now, change.clone()));
            }
        }
    }

    /// Returns the files that a power loss at this moment leaves. The index of the log, which is shared
    /// memory, is never left.
    #[must_use]
    pub fn image(&self, fate: Fate, random: &mut SmallRng) -> Image {
        let mut image = Image::new();
        for (name, (_, file)) in &self.removed {
            // The removal itself may be lost.
            let kept = match fate {
                Fate::Lost => true,
                Fate::Kept => false,
                Fate::Any | Fate::Torn => random.random(),
            };
            if kept {
                image.insert(name.clone(), file.left(fate, random));
            }
        }
        for (name, file) in &self.files {
            image.insert(name.clone(), file.left(fate, random));
        }
        image.retain(|name, _| !name.ends_with("-shm"));
        image
    }

    /// Returns the number of changes that no sync covers.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.files.values().map(|file| file.pending.len()).sum()
    }

    fn file(&mut self, name: &str) -> &mut File {
        self.files.entry(name.to_owned()).or_default()
    }
}

impl File {
    /// A sync that began at `since` covers what was written before.
    fn sync(&mut self, since: u64) {
        let covered = self.pending.partition_point(|(at, _)| *at < since);
        for (_, change) in self.pending.drain(..covered) {
            apply(&mut self.durable, &change);
        }
    }

    fn left(&self, fate: Fate, random: &mut SmallRng) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        for (_, change) in &self.pending {
            match fate {
                Fate::Lost => {}
                Fate::Kept => apply(&mut bytes, change),
                Fate::Any | Fate::Torn if random.random() => apply(&mut bytes, change),
                Fate::Any => {}
                Fate::Torn => tear(&mut bytes, change, random),
            }
        }
        bytes
    }
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Write(offset, data) => {
            let start = usize::try_from(*offset).expect("a small file");
            let end = start + data.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[start..end].copy_from_slice(data);
        }
        Change::Truncate(length) => bytes.resize(usize::try_from(*length).expect("small"), 0),
        Change::SyncBegun(_) | Change::Synced(_) | Change::Unlink => {}
    }
}

/// Carries out a part of a write: each of its sectors or not.
fn tear(bytes: &mut Vec<u8>, change: &Change, random: &mut SmallRng) {
    let Change::Write(offset, data) = change else {
        return;
    };
    let mut offset = *offset;
    let mut rest = &data[..];
    while !rest.is_empty() {
        let in_sector = SECTOR - (offset % SECTOR as u64) as usize;
        let (part, further) = rest.split_at(in_sector.min(rest.len()));
        if random.random() {
            apply(bytes, &Change::Write(offset, part.to_vec()));
        }
        offset += part.len() as u64;
        rest = further;
    }
}

/// Writes an image to a folder.
///
/// # Panics
/// If a write fails.
pub(super) fn write(image: &Image, folder: &Path) {
    for (name, bytes) in image {
        std::fs::write(folder.join(name), bytes).expect("written");
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    fn operation(file: &str, change: Change) -> Operation {
        Operation {
            file: file.to_owned(),
            change,
        }
    }

    fn disk(operations: &[(&str, Change)]) -> Disk {
        let mut disk = Disk::default();
        for (file, change) in operations {
            disk.carry_out(&operation(file, change.clone()));
        }
        disk
    }

    fn image(disk: &Disk, fate: Fate) -> Image {
        disk.image(fate, &mut SmallRng::seed_from_u64(1))
    }

    #[test]
    fn a_sync_covers_what_was_written_before_it_began() {
        let disk = disk(&[
            ("a", Change::Write(0, b"one".to_vec())),
            ("a", Change::SyncBegun(1)),
            ("a", Change::Write(3, b"two".to_vec())),
            ("a", Change::Synced(1)),
            ("b", Change::Write(0, b"three".to_vec())),
            ("b-shm", Change::Write(0, b"four".to_vec())),
        ]);
        assert_eq!(disk.pending(), 3);
        let lost = image(&disk, Fate::Lost);
        assert_eq!(lost["a"], b"one");
        assert_eq!(lost["b"], b"");
        let kept = image(&disk, Fate::Kept);
        assert_eq!(kept["a"], b"onetwo");
        assert_eq!(kept["b"], b"three");
        assert!(!kept.contains_key("b-shm"));
    }

    #[test]
    fn a_removal_may_be_lost_until_the_directory_is_synced() {
        let mut disk = disk(&[
            ("a", Change::Write(0, b"one".to_vec())),
            ("a", Change::SyncBegun(1)),
            ("a", Change::Synced(1)),
            ("a", Change::Unlink),
        ]);
        assert_eq!(image(&disk, Fate::Lost)["a"], b"one");
        assert!(!image(&disk, Fate::Kept).contains_key("a"));
        disk.carry_out(&operation(".", Change::SyncBegun(1)));
        disk.carry_out(&operation(".", Change::Synced(1)));
        assert!(!image(&disk, Fate::Lost).contains_key("a"));
    }

    #[test]
    fn a_torn_write_leaves_whole_sectors() {
        let disk = disk(&[("a", Change::Write(100, vec![1; 64 * SECTOR]))]);
        let torn = (0..20).map(|seed| {
            let mut random = SmallRng::seed_from_u64(seed);
            disk.image(Fate::Torn, &mut random)
                .remove("a")
                .expect("the file")
        });
        let torn: Vec<_> = torn.filter(|bytes| bytes.contains(&1)).collect();
        assert!(torn.iter().any(|bytes| bytes[100..].contains(&0)));
        for bytes in torn {
            for sector in bytes.chunks(SECTOR).skip(1) {
                assert!(sector.windows(2).all(|pair| pair[0] == pair[1]) || sector.len() < SECTOR);
            }
        }
    }
}
