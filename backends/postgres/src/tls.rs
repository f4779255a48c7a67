//! Encrypted connections: the server's certificate is always verified.

use std::path::Path;
use std::sync::Arc;

use queue_core::{Error, Result};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::options::refused;

/// Returns what encrypts connections to a server whose certificate is signed by an authority in the file, or else by one
/// that the operating system trusts.
pub(crate) fn connector(authorities: Option<&Path>) -> Result<MakeRustlsConnect> {
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| unusable("the TLS library", error))?;
    let config = match authorities {
        None => {
            let builder = builder.with_platform_verifier();
            builder.map_err(|error| unusable("the system's certificates", error))?
        }
        Some(file) => builder.with_root_certificates(roots(file)?),
    };
    Ok(MakeRustlsConnect::new(config.with_no_client_auth()))
}

fn roots(file: &Path) -> Result<RootCertStore> {
    let name = format!(
        "the file of the option `sslrootcert`, `{}`,",
        file.display()
    );
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(file);
    for certificate in certificates.map_err(|error| unusable(&name, error))? {
        let certificate = certificate.map_err(|error| unusable(&name, error))?;
        roots
            .add(certificate)
            .map_err(|error| unusable(&name, error))?;
    }
    if roots.is_empty() {
        return Err(refused(format!("{name} has no certificate")));
    }
    Ok(roots)
}

fn unusable(what: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    refused(format!("{what} cannot be used")).with_source(error)
}
