//! Queues in an Azure Storage account, or in an emulator of one.
//!
//! | module | contents |
//! |---|---|
//! | `backend`, `builder` | [`AzureBackend`]: requests through the SDK's clients, and how the backend is opened |
//! | `blobs` | a container of blobs, for payloads that do not fit their messages |
//! | `account` | parsing a connection string or URL into endpoint and credential |
//! | `entra` | tokens of Microsoft Entra ID, from the first credential that gives one |
//! | `call` | one operation, its deadline, and what the SDK's pipeline must not see of it |
//! | `transport`, `sign` | the last step of the SDK's pipeline, where a request gets its secrets |
//! | `origin` | whether a reply is certainly the storage service's |
//! | `clients` | a connection pool for each runtime; how a connection is made |
//! | `xml`, `reply` | bodies of requests and replies |
//! | `failure` | errors, without secrets |
//!
//! Because the pipeline of the Azure SDK logs URLs and headers and keeps them in its errors, no module
//! above `transport` handles a key, a signature or a pop receipt in a request.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod account;
mod backend;
mod blobs;
mod builder;
mod call;
mod clients;
mod entra;
mod failure;
mod origin;
mod reply;
mod sign;
mod transport;
mod xml;

pub use backend::AzureBackend;
pub use builder::AzureBuilder;
#[cfg(feature = "object-store")]
pub use origin::AzureAnswers;
