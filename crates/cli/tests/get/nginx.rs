//! Runs a real nginx on a temporary directory, for tests of what a real server does by itself.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, Issuer, KeyPair};
use tempfile::TempDir;

use crate::server::Resource;

/// A running nginx; it is killed when this is dropped.
pub(crate) struct Nginx {
    child: Child,
    dir: TempDir,
    pub(crate) address: SocketAddr,
}

/// A certificate, its key and the certificate authority that signed it, all in PEM.
pub(crate) struct Identity {
    certificate: String,
    key: String,
    pub(crate) authority: String,
}

/// A certificate for `name`, valid, or expired on 1 January of the given year.
pub(crate) fn identity(name: &str, expired: Option<i32>) -> Identity {
    let authority_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = params.self_signed(&authority_key).unwrap().pem();
    let issuer = Issuer::new(params, &authority_key);
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    if let Some(year) = expired {
        params.not_before = rcgen::date_time_ymd(year - 1, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
    }
    let certificate = params.signed_by(&key, &issuer).unwrap().pem();
    Identity { certificate, key: key.serialize_pem(), authority }
}

impl Nginx {
    /// Serves `/file`; `settings` are added to the `server` block. None, with a printed reason, if nginx is not installed.
    pub(crate) fn start(settings: &str, resource: &Resource, identity: Option<&Identity>) -> Option<Self> {
        let version = Command::new("nginx").arg("-v").stderr(Stdio::null()).status();
        if !version.is_ok_and(|status| status.success()) {
            eprintln!("skipped: nginx is not installed");
            return None;
        }
        // Another program could take the port before nginx binds it; then the next port is tried.
        (0..5).find_map(|_| {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            Self::at(port, settings, resource, identity)
        })
    }

    /// Serves at this address, in the network namespace of the calling thread.
    pub(crate) fn at(
        address: SocketAddr,
        settings: &str,
        resource: &Resource,
        identity: Option<&Identity>,
    ) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::write(root.join("file"), &*resource.data).unwrap();
        let tls = identity.map_or_else(String::new, |identity| {
            fs::write(root.join("cert.pem"), &identity.certificate).unwrap();
            fs::write(root.join("key.pem"), &identity.key).unwrap();
            fs::write(root.join("ca.pem"), &identity.authority).unwrap();
            format!("ssl_certificate {0}/cert.pem; ssl_certificate_key {0}/key.pem;", root.display())
        });
        let ssl = if identity.is_some() { "ssl" } else { "" };
        // nginx runs as the user of the test, so that it can read the directory.
        let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
        let text = format!(
            "{user} daemon off; master_process off; pid {0}/pid; error_log {0}/error.log;\n\
             events {{}}\n\
             http {{ access_log off; client_body_temp_path {0}/t; proxy_temp_path {0}/t; fastcgi_temp_path {0}/t;\n\
             uwsgi_temp_path {0}/t; scgi_temp_path {0}/t;\n\
             server {{ listen {address} {ssl}; root {0}; default_type application/octet-stream;\n\
             {tls}\n{settings} }} }}\n",
            root.display()
        );
        fs::write(root.join("conf"), text).unwrap();
        let log = root.join("error.log");
        let child = Command::new("nginx")
            .args(["-p".as_ref(), root.as_os_str(), "-c".as_ref(), "conf".as_ref(), "-e".as_ref(), log.as_os_str()])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut nginx = Self { child, dir, address };
        let end = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(address).is_err() {
            if nginx.child.try_wait().unwrap().is_some() || Instant::now() > end {
                eprintln!("{}", fs::read_to_string(&log).unwrap_or_default());
                return None;
            }
            thread::sleep(Duration::from_millis(5));
        }
        Some(nginx)
    }

    /// Replaces the file by a rename, as an upload does.
    pub(crate) fn replace(&self, resource: &Resource) {
        fs::write(self.dir.path().join("new"), &*resource.data).unwrap();
        fs::rename(self.dir.path().join("new"), self.dir.path().join("file")).unwrap();
    }

    /// Path of the PEM file with the certificate authority.
    pub(crate) fn authority(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
