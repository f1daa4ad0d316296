//! The laboratory's own certificate authority, and the server's certificate signed by it.
//!
//! Made anew for each lab in a few milliseconds; the `openssl` program was not used because a stranger's machine may
//! lack it, and because starting it takes longer than signing.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};

use crate::network::{SERVER, SERVER_V6};
use crate::places;

/// Where a server may stand beside [`SERVER`]: the first place behind it.
const BEHIND: usize = 1;

/// Where the three files are.
#[derive(Clone, Debug)]
pub(super) struct Certificate {
    /// The authority's certificate, for clients.
    pub(super) authority: PathBuf,
    /// The server's certificate.
    pub(super) certificate: PathBuf,
    /// The server's key.
    pub(super) key: PathBuf,
}

impl Certificate {
    pub(super) fn create(directory: &Path) -> io::Result<Self> {
        let files = Self {
            authority: directory.join("ca.pem"),
            certificate: directory.join("server.pem"),
            key: directory.join("server.key"),
        };
        let (authority, certificate, key) = sign().map_err(io::Error::other)?;
        fs::write(&files.authority, authority)?;
        fs::write(&files.certificate, certificate)?;
        fs::write(&files.key, key)?;
        Ok(files)
    }
}

fn sign() -> Result<(String, String, String), rcgen::Error> {
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.distinguished_name.push(DnType::CommonName, "marline lab");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let names =
        [SERVER.to_string(), places::address(BEHIND).to_string(), SERVER_V6.to_string(), "server.lab".to_string()];
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
    fn three_files_in_pem() {
        let directory = tempfile::tempdir().unwrap();
        let files = Certificate::create(directory.path()).unwrap();
        for (file, kind) in
            [(files.authority, "CERTIFICATE"), (files.certificate, "CERTIFICATE"), (files.key, "PRIVATE KEY")]
        {
            assert!(fs::read_to_string(file).unwrap().starts_with(&format!("-----BEGIN {kind}-----")));
        }
    }
}
