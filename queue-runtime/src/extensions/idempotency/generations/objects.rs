//! The names and contents of the objects of `ObjectResults`.

use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path;
use queue_core::idempotency::{Owner, WorkKey};
use queue_core::internal::{json_error, to_hex};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::protocol::{ClaimObject, EndObject, Seen};

/// The version of the objects' contents.
const VERSION: u32 = 1;

/// The folder of a key's objects: a hash, because keys may be of any length and of any characters.
pub(super) fn folder(prefix: &Path, key: &WorkKey) -> Path {
    let mut hash = Sha256::new();
    // With the scope's length, so that no two work keys are hashed alike.
    hash.update((key.scope().len() as u64).to_be_bytes());
    hash.update(key.scope());
    hash.update(key.key());
    prefix.clone().join(to_hex(&hash.finalize()))
}

/// The name of one of a key's objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Name {
    Claim(u64),
    Beat(u64, u64),
    End(u64),
}

impl Name {
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (generation, rest) = match name.split_once('.') {
            Some((generation, rest)) => (generation, Some(rest)),
            None => (name, None),
        };
        let generation = generation.parse().ok()?;
        match rest {
            None => Some(Self::Claim(generation)),
            Some("end") => Some(Self::End(generation)),
            Some(rest) => {
                let beat = rest.strip_prefix("beat-")?.parse().ok()?;
                Some(Self::Beat(generation, beat))
            }
        }
    }

    pub(super) fn within(self, folder: &Path) -> Path {
        folder.clone().join(match self {
            Self::Claim(generation) => format!("{generation:06}"),
            Self::Beat(generation, beat) => format!("{generation:06}.beat-{beat:06}"),
            Self::End(generation) => format!("{generation:06}.end"),
        })
    }

    pub(super) fn generation(self) -> u64 {
        match self {
            Self::Claim(generation) | Self::Beat(generation, _) | Self::End(generation) => {
                generation
            }
        }
    }
}

/// Returns the highest generation among the names.
pub(super) fn seen(names: impl IntoIterator<Item = Name>) -> Option<Seen> {
    names.into_iter().fold(None, |seen: Option<Seen>, name| {
        let generation = name.generation();
        let mut highest = match seen {
            Some(seen) if seen.generation > generation => return Some(seen),
            Some(seen) if seen.generation == generation => seen,
            _ => Seen {
                generation,
                beat: 0,
                ended: false,
            },
        };
        match name {
            Name::Claim(_) => {}
            Name::Beat(_, beat) => highest.beat = highest.beat.max(beat),
            Name::End(_) => highest.ended = true,
        }
        Some(highest)
    })
}

/// The first line of an object, which the result of finished work follows, as it is.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Header {
    version: u32,
    scope: String,
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retention_ms: Option<u64>,
    /// The length of the result, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    end: Option<End>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum End {
    Done,
    Over,
}

pub(super) fn claim_body(key: &WorkKey, claim: &ClaimObject) -> Bytes {
    let header = Header {
        owner: Some(claim.owner.to_u64()),
        lease_ms: Some(millis(claim.lease)),
        ..header(key)
    };
    body(&header, &[])
}

pub(super) fn end_body(key: &WorkKey, end: &EndObject) -> Bytes {
    match end {
        EndObject::Done {
            owner,
            retention,
            result,
        } => {
            let header = Header {
                owner: Some(owner.to_u64()),
                retention_ms: Some(millis(*retention)),
                size: Some(result.len() as u64),
                end: Some(End::Done),
                ..header(key)
            };
            body(&header, result)
        }
        EndObject::Over => {
            let header = Header {
                end: Some(End::Over),
                ..header(key)
            };
            body(&header, &[])
        }
    }
}

/// Reads the object of a generation.
///
/// # Errors
/// A description, if the object is no claim of this key.
pub(super) fn read_claim(key: &WorkKey, bytes: &Bytes) -> Result<ClaimObject, String> {
    let (header, _) = read(bytes)?;
    of_key(key, &header)?;
    match (header.owner, header.lease_ms) {
        (Some(owner), Some(lease)) => Ok(ClaimObject {
            owner: Owner::from_u64(owner),
            lease: Duration::from_millis(lease),
        }),
        _ => Err("it has no owner or no lease".to_owned()),
    }
}

/// Reads the object that ends a generation.
///
/// # Errors
/// A description, if the object is no end of a generation of this key.
pub(super) fn read_end(key: &WorkKey, bytes: &Bytes) -> Result<EndObject, String> {
    let (header, result) = read(bytes)?;
    of_key(key, &header)?;
    let size = result.len() as u64;
    if header.size.is_some_and(|said| said != size) {
        return Err(format!(
            "its result has {size} bytes, which is not what it says"
        ));
    }
    match (header.end, header.owner, header.retention_ms) {
        (Some(End::Over), ..) => Ok(EndObject::Over),
        (Some(End::Done), Some(owner), Some(retention)) => Ok(EndObject::Done {
            owner: Owner::from_u64(owner),
            retention: Duration::from_millis(retention),
            result,
        }),
        _ => Err("it has no end, no owner or no retention".to_owned()),
    }
}

/// Returns how long the object that ends a generation is kept, if it holds a result.
pub(super) fn retention(bytes: &Bytes) -> Result<Option<Duration>, String> {
    let (header, _) = read(bytes)?;
    Ok(header.retention_ms.map(Duration::from_millis))
}

fn header(key: &WorkKey) -> Header {
    Header {
        version: VERSION,
        scope: key.scope().to_owned(),
        key: key.key().to_owned(),
        ..Header::default()
    }
}

fn body(header: &Header, result: &[u8]) -> Bytes {
    let mut bytes = serde_json::to_vec(header).expect("strings and numbers are JSON");
    bytes.push(b'\n');
    bytes.extend_from_slice(result);
    bytes.into()
}

fn read(bytes: &Bytes) -> Result<(Header, Bytes), String> {
    let line = bytes.iter().position(|byte| *byte == b'\n');
    let line = line.ok_or("its first line does not end")?;
    let header: Header =
        serde_json::from_slice(&bytes[..line]).map_err(|error| json_error(&error).to_string())?;
    if header.version != VERSION {
        let found = header.version;
        return Err(format!(
            "its version is {found}, and only {VERSION} is known"
        ));
    }
    Ok((header, bytes.slice(line + 1..)))
}

fn of_key(key: &WorkKey, header: &Header) -> Result<(), String> {
    if header.scope == key.scope() && header.key == key.key() {
        return Ok(());
    }
    let other = WorkKey::new(&header.scope, &header.key);
    Err(format!("it is that of another key, `{other}`"))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let folder = Path::from("a/b");
        for name in [
            Name::Claim(7),
            Name::Beat(1_234_567, 8),
            Name::End(u64::MAX),
        ] {
            let path = name.within(&folder);
            let file = path.filename().expect("a name");
            assert_eq!(Name::parse(file), Some(name), "{path}");
        }
        for foreign in ["", "x", "7.other", "7.beat-x", ".end", "-1"] {
            assert_eq!(Name::parse(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn the_highest_generation_is_found_in_any_order() {
        let names = [
            Name::End(9),
            Name::Beat(10, 3),
            Name::Claim(10),
            Name::Beat(9, 7),
            Name::Beat(10, 2),
            Name::Claim(9),
        ];
        let expected = Seen {
            generation: 10,
            beat: 3,
            ended: false,
        };
        for start in 0..names.len() {
            let rotated = (0..names.len()).map(|at| names[(start + at) % names.len()]);
            assert_eq!(seen(rotated), Some(expected));
        }
        assert_eq!(seen([]), None);
    }

    #[test]
    fn objects_are_read_as_they_are_written_and_only_for_their_key() {
        let key = WorkKey::new("queue a", "line\nbreak");
        let owner = Owner::random();
        let lease = Duration::from_millis(1500);
        let claim = ClaimObject { owner, lease };
        let bytes = claim_body(&key, &claim);
        assert_eq!(read_claim(&key, &bytes), Ok(claim));
        let other = read_claim(&WorkKey::from("b"), &bytes).expect_err("another key");
        assert!(other.contains("another key, `queue a"), "{other}");
        let done = EndObject::Done {
            owner,
            retention: Duration::from_secs(60),
            result: Bytes::from_static(b"two\nlines"),
        };
        for end in [done.clone(), EndObject::Over] {
            assert_eq!(read_end(&key, &end_body(&key, &end)), Ok(end));
        }
        let whole = end_body(&key, &done);
        let header = whole
            .iter()
            .position(|byte| *byte == b'\n')
            .expect("a line");
        for length in [header / 2, header, header + 1, whole.len() - 1] {
            read_end(&key, &whole.slice(..length)).expect_err("it was cut");
        }
        read_end(&key, &bytes).expect_err("not an end");
        read_end(&key, &Bytes::from_static(b"{}")).expect_err("cut off");
    }

    #[test]
    fn keys_that_are_joined_alike_have_folders_of_their_own() {
        let prefix = Path::from("results");
        let folder = |scope, key| folder(&prefix, &WorkKey::new(scope, key));
        assert_ne!(folder("a", "bc"), folder("ab", "c"));
    }
}
