//! What all programs that use the same shards agree on.

use queue_core::backend::Metadata;
use queue_core::internal::json_error;
use queue_core::{Error, ErrorKind, Operation, Result};

use crate::placement::MAX_SHARDS;

/// Which shards there are, kept in the metadata of one queue of the first account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// Rises with each change, as far as it can.
    pub(crate) epoch: u64,
    /// The URIs of the accounts.
    pub(crate) accounts: Vec<String>,
    /// The account of each shard that there is, by its position.
    pub(crate) places: Vec<u16>,
    /// The number of shards that messages are put on: the first ones. The other shards only have what was put on them
    /// before.
    pub(crate) active: u32,
    /// Among how many of the accounts, the first ones, records are spread. Never changes, so that each stays where it is.
    pub(crate) record_accounts: u16,
}

const ACTIVE: &str = "shards";
const EPOCH: &str = "shardsepoch";
const ACCOUNTS: &str = "shardsaccounts";
const PLACES: &str = "shardsplaces";
const RECORDS: &str = "shardsrecords";

impl Descriptor {
    /// Describes shards in turn on these accounts.
    pub(crate) fn first(accounts: Vec<String>, active: u32) -> Self {
        let mut descriptor = Self {
            epoch: 1,
            record_accounts: accounts.len() as u16,
            accounts,
            places: Vec::new(),
            active,
        };
        descriptor.add_places();
        descriptor
    }

    /// Describes the same shards after a change of their number, on these accounts.
    pub(crate) fn resized(&self, accounts: Vec<String>, active: u32) -> Self {
        let mut resized = Self {
            epoch: self.epoch.saturating_add(1),
            accounts,
            places: self.places.clone(),
            active,
            record_accounts: self.record_accounts,
        };
        resized.add_places();
        resized
    }

    /// Gives each new shard a place on the account that has the fewest.
    fn add_places(&mut self) {
        while self.places.len() < self.active as usize {
            let count =
                |account: &u16| self.places.iter().filter(|place| *place == account).count();
            let least = (0..self.accounts.len() as u16).min_by_key(count);
            self.places.push(least.unwrap_or_default());
        }
    }

    /// The number of shards that there are, with those that messages are no longer put on.
    pub(crate) fn all(&self) -> u32 {
        self.places.len() as u32
    }

    /// Checks that a program with these accounts can serve the shards: it has all that the descriptor names, in their
    /// order, and perhaps more, which a later resize uses.
    pub(crate) fn check(&self, own: &[String]) -> Result<()> {
        if own.starts_with(&self.accounts) {
            return Ok(());
        }
        let detail = format!(
            "programs disagree about the accounts of the shards: the storage has version {} with {:?}, and this program has \
             {own:?}; it has to name the same accounts in the same order, and may name more after them",
            self.epoch, self.accounts
        );
        Err(Error::new(ErrorKind::InvalidInput, Operation::Open).with_detail(detail))
    }

    /// Says that one of the accounts, by its position, does not exist.
    pub(crate) fn is_missing(&self, account: usize) -> String {
        let shards = self.places.iter().enumerate();
        let shards = shards.filter(|(_, place)| usize::from(**place) == account);
        let shards: Vec<String> = shards.map(|(shard, _)| shard.to_string()).collect();
        let (name, shards) = (&self.accounts[account], shards.join(", "));
        format!(
            "there is no storage in the place of {name}, which has shard {shards} of each queue; restore it, or correct its \
             URL; nothing was created"
        )
    }

    pub(crate) fn to_metadata(&self) -> Result<Metadata> {
        let mut metadata = Metadata::new();
        let places: Vec<String> = self.places.iter().map(u16::to_string).collect();
        let accounts = serde_json::Value::from(self.accounts.clone()).to_string();
        for (name, value) in [
            (ACTIVE, self.active.to_string()),
            (EPOCH, self.epoch.to_string()),
            (ACCOUNTS, accounts),
            (PLACES, places.join(",")),
            (RECORDS, self.record_accounts.to_string()),
        ] {
            metadata.insert(name, &value).map_err(|problem| {
                let error = Error::new(ErrorKind::InvalidInput, Operation::Open).unsent();
                error.with_detail(format!("the accounts cannot be recorded: {problem}"))
            })?;
        }
        Ok(metadata)
    }

    pub(crate) fn from_metadata(metadata: &Metadata) -> Result<Self> {
        let find = |name| {
            let value = metadata.find(name);
            value.ok_or_else(|| damaged(format!("its metadata has no `{name}`")))
        };
        let number = |name| {
            let value: Option<u64> = find(name)?.parse().ok();
            value.ok_or_else(|| damaged(format!("`{name}` is no number")))
        };
        let accounts: Vec<String> = serde_json::from_str(find(ACCOUNTS)?)
            .map_err(|error| damaged(format!("`{ACCOUNTS}` is no list: {}", json_error(&error))))?;
        let places = find(PLACES)?.split(',').map(|place| {
            let place = place.parse().ok();
            place.filter(|place| usize::from(*place) < accounts.len())
        });
        let places: Option<Vec<u16>> = places.collect();
        let places = places.ok_or_else(|| damaged(format!("`{PLACES}` names no accounts")))?;
        let (active, epoch) = (number(ACTIVE)?, number(EPOCH)?);
        // Without it, all are on the first account.
        let records = metadata.find(RECORDS).map_or(Ok(1), |_| number(RECORDS))?;
        if records == 0 || records > accounts.len() as u64 {
            return Err(damaged(format!("it says {records} accounts have records")));
        }
        if active == 0 || active > places.len() as u64 || places.len() > MAX_SHARDS as usize {
            let all = places.len();
            return Err(damaged(format!(
                "it says {active} shards of {all} are in use"
            )));
        }
        Ok(Self {
            epoch,
            accounts,
            places,
            active: active as u32,
            record_accounts: records as u16,
        })
    }
}

fn damaged(problem: String) -> Error {
    let detail = format!("the descriptor of the shards cannot be read: {problem}");
    Error::new(ErrorKind::Corrupt, Operation::Properties).with_detail(detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| format!("memory:{name}")).collect()
    }

    #[test]
    fn it_comes_back_from_metadata_and_what_is_damaged_is_refused() {
        let descriptor = Descriptor::first(accounts(&["a", "b"]), 5);
        assert_eq!(descriptor.places, [0, 1, 0, 1, 0]);
        let metadata = descriptor.to_metadata().expect("it fits");
        let read = Descriptor::from_metadata(&metadata).expect("it is whole");
        assert_eq!(read, descriptor);
        for (name, value) in [
            (ACTIVE, "6"),
            (ACTIVE, "0"),
            (EPOCH, "x"),
            (PLACES, "0,2"),
            (PLACES, ""),
            (ACCOUNTS, "a"),
            (RECORDS, "0"),
            (RECORDS, "3"),
        ] {
            let mut damaged = metadata.clone();
            damaged.insert(name, value).expect("valid");
            let refused = Descriptor::from_metadata(&damaged).expect_err("it is damaged");
            assert_eq!(refused.kind(), ErrorKind::Corrupt, "{name}={value}");
        }
    }

    #[test]
    fn shards_keep_their_places_when_accounts_are_added() {
        let before = Descriptor::first(accounts(&["a", "b"]), 4);
        let larger = before.resized(accounts(&["a", "b", "c"]), 7);
        assert_eq!(larger.places, [0, 1, 0, 1, 2, 2, 0]);
        assert_eq!(larger.record_accounts, 2, "records stay where they are");
        let smaller = larger.resized(accounts(&["a", "b", "c"]), 2);
        assert_eq!((smaller.all(), smaller.active, smaller.epoch), (7, 2, 3));
        let last = Descriptor {
            epoch: u64::MAX,
            ..before.clone()
        };
        assert_eq!(last.resized(accounts(&["a", "b"]), 2).epoch, u64::MAX);
        assert!(before.check(&accounts(&["a", "b", "c"])).is_ok());
        for other in [&["a"][..], &["b", "a"], &["a", "c"]] {
            let refused = before.check(&accounts(other)).expect_err("they differ");
            let text = refused.to_string();
            assert!(
                text.contains("version 1") && text.contains("memory:b"),
                "{text}"
            );
        }
    }
}
