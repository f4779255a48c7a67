//! Queues in an Azure Storage account, or in an emulator of one.
//!
//! | module | holds |
//! |---|---|
//! | `backend`, `builder` | [`AzureBackend`], and how it is opened |
//! | `account`, `settings` | from a connection string or URL to endpoint and credential |
//! | `entra` | tokens of Microsoft Entra ID, from whoever gives one |
//! | `requests`, `queues`, `messages` | what is asked of the service, through the SDK's clients |
//! | `call` | one operation: its deadline, and what travels beside it to the transport |
//! | `transport`, `sign` | the pipeline's last station: the only place where secrets meet a request |
//! | `clients`, `connector` | connections, apart for each runtime; how one is made |
//! | `xml`, `reply`, `text` | bodies of requests and replies; which texts survive them |
//! | `failure`, `service_error` | what went wrong, told without secrets |
//!
//! The pipeline of the Azure SDK logs URLs and headers, and keeps them in its errors. Nothing above
//! `transport` therefore ever holds a key, a signature or a pop receipt.

mod account;
mod backend;
mod builder;
mod call;
mod clients;
mod connector;
mod entra;
mod failure;
mod messages;
mod queues;
mod reply;
mod requests;
mod secret;
mod service_error;
mod settings;
mod sign;
mod text;
mod transport;
mod xml;

pub use backend::AzureBackend;
pub use builder::AzureBuilder;
