//! What both sides of Azure's Queue service have: the engine `queue-azure`, which asks a service, and `queue-server`, which
//! is one. Neither depends on the other.
//!
//! | module | contents |
//! |---|---|
//! | [`sign`] | account keys, what is signed of a request, and signatures |
//! | [`sas`] | shared access signatures: what they say, and what of it is signed |
//! | [`xml`] | small trees of XML, the body of a message, dates |
//! | [`code`] | the codes of errors, with their statuses |

pub mod code;
pub mod sas;
pub mod sign;
pub mod xml;

/// The longest text of a message, in bytes.
pub const MAX_TEXT: usize = 64 * 1024;

/// The longest body of a request, in bytes.
pub const MAX_BODY: usize = 131_584;

/// The most messages of a get or a peek.
pub const MAX_MESSAGES: usize = 32;

/// The longest visibility timeout, in seconds.
pub const MAX_VISIBILITY: u64 = 7 * 24 * 60 * 60;

/// The most queues on a page of a list.
pub const MAX_LISTED: usize = 5_000;

/// The header with the version of the protocol that a client speaks.
pub const VERSION_HEADER: &str = "x-ms-version";

/// What the headers with a queue's metadata begin with.
pub const METADATA_PREFIX: &str = "x-ms-meta-";
