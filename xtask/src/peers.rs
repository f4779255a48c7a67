use crate::{azurite, cargo, npm, python};

/// The client of Azure's queues for JavaScript: the newest version that runs on Node.js 20.
const STORAGE_QUEUE: &str = "12.30.0";

/// Makes sure that there are Azurite, and Python and Node.js with the packages of the tests, which are installed below
/// the target directory if necessary. Returns the reason if one is missing.
pub(crate) fn ensure_installed() -> Result<(), String> {
    azurite::ensure_installed()?;
    python::ensure_installed()?;
    let directory = cargo::target().join("storage-queue");
    npm::ensure_installed("@azure/storage-queue", STORAGE_QUEUE, &directory)
}
