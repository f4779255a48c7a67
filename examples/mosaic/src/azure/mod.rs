//! Blobs in an Azure Storage account, or in an emulator of one.
//!
//! | module | holds |
//! |---|---|
//! | `account` | from a connection string or URL to the blob endpoint and who asks |
//! | `entra` | tokens of Microsoft Entra ID, from whoever gives one |
//! | `containers` | the account's containers, made where they are missing |

mod account;
mod containers;
mod entra;

pub use account::{Account, Problem};
pub use containers::AzureError;
