//! Blob names, which cannot point outside the containers.

use std::fmt::{self, Write as _};

use queue_runtime::RequestId;
use serde::{Deserialize, Serialize};

use pictures::Fingerprint;

/// What blobs are for: the first part of their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    /// Source pictures.
    ImageInput,
    /// Tile libraries and their caches.
    ImageLibrary,
    /// Slices of source pictures.
    SliceRequest,
    /// Rendered slices.
    SliceResponse,
    /// Mosaics.
    ImageOutput,
    /// Status records of requests.
    Status,
    /// Status records of slices.
    SliceStatus,
}

impl Container {
    const ALL: [Self; 7] = [
        Self::ImageInput,
        Self::ImageLibrary,
        Self::SliceRequest,
        Self::SliceResponse,
        Self::ImageOutput,
        Self::Status,
        Self::SliceStatus,
    ];

    /// Containers with a folder for each request, which is not needed when the mosaic is saved.
    pub(crate) const OF_REQUESTS: [Self; 4] = [
        Self::ImageInput,
        Self::SliceRequest,
        Self::SliceResponse,
        Self::ImageOutput,
    ];

    /// The container's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::ImageInput => "imageinput",
            Self::ImageLibrary => "imagelibrary",
            Self::SliceRequest => "slicerequest",
            Self::SliceResponse => "sliceresponse",
            Self::ImageOutput => "imageoutput",
            Self::Status => "status",
            Self::SliceStatus => "slicestatus",
        }
    }
}

/// The name of a blob: `CONTAINER/PART/…`, where every part consists of lower-case letters, digits,
/// dashes, dots and `_`, and does not start with a dot.
///
/// Messages carry names, so deserializing validates them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BlobName(String);

/// The error for text that is not a valid blob name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a valid blob name")]
pub struct InvalidBlobName(String);

/// The maximum length of a part, in bytes; file systems allow 255.
const MAX_PART: usize = 120;
/// The maximum length of a name, in bytes.
const MAX_NAME: usize = 512;

impl BlobName {
    /// Makes a name of parts that may be any text. Bytes that a name cannot hold are written as `_`
    /// and two hexadecimal digits; too long a part is cut and ends in a hash.
    pub fn new(container: Container, parts: &[&str]) -> Self {
        let mut name = container.name().to_owned();
        for part in parts {
            name.push('/');
            name.push_str(&encoded(part));
        }
        Self(name)
    }

    /// The name of a request's source picture.
    pub fn source(request: &RequestId) -> Self {
        Self::new(Container::ImageInput, &[request.as_str(), "source"])
    }

    /// The name of a slice of a request's source picture.
    pub fn slice(request: &RequestId, sequence: u32) -> Self {
        let file = format!("{sequence:04}.png");
        Self::new(Container::SliceRequest, &[request.as_str(), &file])
    }

    /// The name of a rendered slice of a request.
    pub fn rendered(request: &RequestId, sequence: u32) -> Self {
        let file = format!("{sequence:04}.png");
        Self::new(Container::SliceResponse, &[request.as_str(), &file])
    }

    /// The name of a request's mosaic, of an attempt to join it. A mosaic's blobs are its [parts](Self::part).
    pub fn mosaic(request: &RequestId, attempt: &str) -> Self {
        Self::new(Container::ImageOutput, &[request.as_str(), attempt])
    }

    /// The name of a part of a mosaic.
    pub fn part(&self, number: u32) -> Self {
        Self(format!("{self}.{number:04}"))
    }

    /// The name of a status record of a request.
    pub fn status(request: &RequestId, record: &str) -> Self {
        Self::new(Container::Status, &[request.as_str(), record])
    }

    /// The name of a tile library.
    pub fn library(library: Fingerprint) -> Self {
        Self::new(Container::ImageLibrary, &[&library.to_string()])
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for BlobName {
    type Error = InvalidBlobName;

    fn try_from(name: String) -> Result<Self, InvalidBlobName> {
        let mut parts = name.split('/');
        let known = |name| Container::ALL.iter().any(|known| known.name() == name);
        let allowed = name.len() <= MAX_NAME
            && parts.next().is_some_and(known)
            && name.contains('/')
            && parts.all(is_part);
        if allowed {
            Ok(Self(name))
        } else {
            Err(InvalidBlobName(name))
        }
    }
}

impl From<BlobName> for String {
    fn from(name: BlobName) -> Self {
        name.0
    }
}

impl fmt::Display for BlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_part(part: &str) -> bool {
    (1..=MAX_PART).contains(&part.len())
        && !part.starts_with('.')
        && part.bytes().all(|byte| is_plain(byte) || byte == b'_')
}

/// Only lower case, since some file systems ignore case.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.'
}

fn encoded(part: &str) -> String {
    let mut text = String::with_capacity(part.len());
    for (at, byte) in part.bytes().enumerate() {
        if is_plain(byte) && !(at == 0 && byte == b'.') {
            text.push(char::from(byte));
        } else {
            write!(text, "_{byte:02x}").expect("writing to a String cannot fail");
        }
    }
    if text.is_empty() {
        text.push_str("__");
    }
    if text.len() > MAX_PART {
        let hash = Fingerprint::of_files(&[(part, "")]);
        text.truncate(MAX_PART - 34);
        write!(text, "__{hash}").expect("writing to a String cannot fail");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_id_has_a_distinct_name() {
        let long = "x".repeat(1024);
        let longer = format!("{long}y");
        let ids = "0197 .. . ../../etc a/b a_2fb A a ä c:\\x %2e%2e";
        let ids: Vec<&str> = ids.split(' ').chain([&*long, &longer]).collect();
        let name = |id: &str| BlobName::new(Container::Status, &[id, "plan.json"]);
        for (at, id) in ids.iter().enumerate() {
            let text = String::from(name(id));
            assert_eq!(BlobName::try_from(text.clone()), Ok(name(id)), "{text}");
            assert_eq!(text.matches('/').count(), 2, "{text}");
            assert!(
                ids[..at].iter().all(|other| name(other) != name(id)),
                "{id}"
            );
        }
        let request = RequestId::new("a/b").expect("an id");
        assert_eq!(
            BlobName::mosaic(&request, "1").part(2).as_str(),
            "imageoutput/a_2fb/1.0002"
        );
    }

    #[test]
    fn names_outside_the_containers_are_refused() {
        let long = format!("status/{}", "x".repeat(121));
        let names = "status status/ /status/a etc/passwd status/../x status/a//b status/.git status/A status/a\\b \
                     status/a%2fb status/ä";
        for name in names.split(' ').chain(["", &long]) {
            assert!(BlobName::try_from(name.to_owned()).is_err(), "{name}");
        }
    }
}
