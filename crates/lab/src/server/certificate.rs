//! Certificate authority of the lab, and the server's certificate that it signs.
//!
//! Both are created for each lab in a few milliseconds. The `openssl` program was not used, because it may not
//! be installed, and starting it takes longer than signing.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};

use crate::network::{SERVER, SERVER_V6};
use crate::wan_topology;

/// The site that a server may use instead of [`SERVER`]: the first one behind it.
const FIRST_SITE: usize = 1;

/// Paths of the three PEM files.
#[derive(Clone, Debug)]
pub(super) struct ServerCertificate {
    /// Certificate of the authority, for clients.
    pub(super) ca_file: PathBuf,
    /// Certificate of the server.
    pub(super) cert_file: PathBuf,
    /// Private key of the server.
    pub(super) key_file: PathBuf,
}

impl ServerCertificate {
    pub(super) fn create(directory: &Path) -> io::Result<Self> {
        let files = Self {
            ca_file: directory.join("ca.pem"),
            cert_file: directory.join("server.pem"),
            key_file: directory.join("server.key"),
        };
        let (authority, certificate, key) = create_pems().map_err(io::Error::other)?;
        fs::write(&files.ca_file, authority)?;
        fs::write(&files.cert_file, certificate)?;
        fs::write(&files.key_file, key)?;
        Ok(files)
    }
}

fn create_pems() -> Result<(String, String, String), rcgen::Error> {
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.distinguished_name.push(DnType::CommonName, "marline lab");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let names = [
        SERVER.to_string(),
        wan_topology::site_address(FIRST_SITE).to_string(),
        SERVER_V6.to_string(),
        "server.lab".to_string(),
    ];
    let mut server = CertificateParams::new(names.to_vec())?;
    server.distinguished_name.push(DnType::CommonName, "server.lab");
    let key = KeyPair::generate()?;
    let server = server.signed_by(&key, &authority)?;
    Ok((authority.pem(), server.pem(), key.serialize_pem()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_files_are_pem() {
        let directory = tempfile::tempdir().unwrap();
        let files = ServerCertificate::create(directory.path()).unwrap();
        for (file, kind) in
            [(files.ca_file, "CERTIFICATE"), (files.cert_file, "CERTIFICATE"), (files.key_file, "PRIVATE KEY")]
        {
            assert!(fs::read_to_string(file).unwrap().starts_with(&format!("-----BEGIN {kind}-----")));
        }
    }
}
