//! Blobs in an Azure Storage account, or in an emulator of one.
//!
//! | module | does |
//! |---|---|
//! | `account` | reads the blob endpoint and the credential from a connection string or URL |
//! | `entra` | gets tokens of Microsoft Entra ID |
//! | `containers` | opens the account's containers, and creates those that are missing |

mod account;
mod containers;
mod entra;

pub use account::{Account, Problem};
pub use containers::{AzureError, container_pictures};
