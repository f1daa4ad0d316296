//! The server of a lab: nginx, or any shell command.

mod certificate;
mod listener;
mod nginx;
mod payload;
mod temp_dir;

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use marline_sys::clock;
use marline_sys::namespace::NetNs;
use marline_sys::process::PidNamespace;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::network::Namespaces;
use crate::wan_topology;
use crate::{LabError, Service};
use certificate::ServerCertificate;
pub use payload::Payload;
pub use temp_dir::TempDir;
pub(crate) use temp_dir::remove_stale_dirs;

/// Time that a server has to start listening.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct LabServer {
    child: Child,
    /// nginx's files; `None` for a command.
    temp_dir: Option<TempDir>,
    ca_file: Option<PathBuf>,
    address: Ipv4Addr,
    path: String,
}

impl LabServer {
    /// Starts the service and waits until it listens. With `mptcp`, nginx accepts MPTCP on port 80. The server runs
    /// at site `site_number`.
    pub(crate) fn start(
        service: &Service,
        mptcp: bool,
        site_number: usize,
        networks: &Namespaces,
        pid_namespace: &PidNamespace,
    ) -> Result<Option<Self>, LabError> {
        let no_such = || LabError::Server(format!("there is no site {site_number}"));
        let site = ServerSite {
            network: networks.site(site_number).ok_or_else(no_such)?,
            address: wan_topology::site_address(site_number),
            pid_namespace,
        };
        match service {
            Service::None => Ok(None),
            Service::Files(path) => Self::start_nginx(path, mptcp.then_some(networks), &site).map(Some),
            Service::Command(line) => Self::start_command(line, &site).map(Some),
        }
    }

    fn start_nginx(path: &Path, mptcp: Option<&Namespaces>, site: &ServerSite<'_>) -> Result<Self, LabError> {
        let program = find_program("nginx")
            .ok_or(LabError::MissingProgram { program: "nginx".into(), package: "nginx-light" })?;
        let step = || LabError::at_step(format!("serving {}", path.display()));
        let path = fs::canonicalize(path).map_err(step())?;
        let folder = TempDir::new().map_err(step())?;
        let (root, name) = if path.is_dir() {
            (path.clone(), String::new())
        } else {
            // A symbolic link in an otherwise empty directory, so that nothing else in the file's directory is
            // served.
            let root = folder.path().join("www");
            fs::create_dir(&root).map_err(step())?;
            let name = path.file_name().unwrap_or_default();
            std::os::unix::fs::symlink(&path, root.join(name)).map_err(step())?;
            (root, percent_encoded(&name.to_string_lossy()))
        };
        let certificate = ServerCertificate::create(folder.path()).map_err(step())?;
        nginx::write_config(folder.path(), &root, &certificate, mptcp.is_some()).map_err(step())?;
        let log = folder.path().join("error.log");
        let mut command = Command::new(program);
        command.arg("-p").arg(folder.path()).arg("-c").arg(folder.path().join("nginx.conf"));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        if let Some(networks) = mptcp {
            listener::pass_listeners(&mut command, networks).map_err(LabError::at_step("listening for MPTCP"))?;
        }
        command.stderr(File::create(folder.path().join("stderr.log")).map_err(step())?);
        let mut server = Self {
            child: spawn(&mut command, site).map_err(step())?,
            ca_file: Some(certificate.ca_file),
            address: site.address,
            path: name,
            temp_dir: Some(folder),
        };
        let address = site.address;
        let ready = server.wait(site.network, || {
            TcpStream::connect_timeout(&SocketAddr::from((address, 443)), Duration::from_millis(500)).is_ok()
        });
        match ready {
            Ok(true) => Ok(server),
            Ok(false) => Err(server.into_error("nginx does not listen")),
            Err(error) => Err(server.into_error(&format!("nginx: {error}: {}", last_line(&log)))),
        }
    }

    fn start_command(line: &str, site: &ServerSite<'_>) -> Result<Self, LabError> {
        let mut command = Command::new("sh");
        // Standard output belongs to the client's command, so the server's goes to standard error.
        command.arg("-c").arg(line).stdin(Stdio::null()).stdout(io::stderr());
        let child = spawn(&mut command, site);
        let child = child.map_err(|source| LabError::Start { program: line.into(), source })?;
        let mut server = Self { child, temp_dir: None, ca_file: None, address: site.address, path: String::new() };
        match server.wait(site.network, has_listener) {
            Ok(true) => Ok(server),
            Ok(false) => Err(server.into_error(&format!("`{line}` does not listen on any port in time"))),
            Err(error) => Err(server.into_error(&format!("`{line}`: {error}"))),
        }
    }

    /// Waits until `ready` returns true; false if that takes longer than [`LISTEN_TIMEOUT`], an error if the
    /// process ends.
    fn wait(&mut self, network: &NetNs, ready: impl Fn() -> bool + Send) -> io::Result<bool> {
        let child = &mut self.child;
        network.run(move || {
            let until = clock::now() + LISTEN_TIMEOUT.as_nanos() as u64;
            while clock::now() < until {
                if ready() {
                    return Ok(true);
                }
                if let Some(status) = child.try_wait()? {
                    return Err(io::Error::other(format!("it ended: {status}")));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(false)
        })
    }

    /// Kills the process and returns the error, with the last line of standard error.
    fn into_error(mut self, context: &str) -> LabError {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let last_stderr_line = self.temp_dir.as_ref().map(|folder| last_line(&folder.path().join("stderr.log")));
        match last_stderr_line.filter(|text| !text.is_empty()) {
            Some(last_stderr_line) => LabError::Server(format!("{context}: {last_stderr_line}")),
            None => LabError::Server(context.to_string()),
        }
    }

    /// The HTTP URL of what is served.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/{}", self.address, self.path)
    }

    /// The HTTPS URL of what is served.
    pub(crate) fn secure_url(&self) -> String {
        format!("https://{}/{}", self.address, self.path)
    }

    /// Certificate file of the authority that signed the server's certificate.
    pub(crate) fn ca_file(&self) -> Option<&Path> {
        self.ca_file.as_deref()
    }

    /// Waits for the end of a server that was killed.
    pub(crate) fn reap(&mut self) {
        let _ = self.child.wait();
    }
}

/// Network, address and PID namespace of a server.
struct ServerSite<'a> {
    network: &'a NetNs,
    address: Ipv4Addr,
    pid_namespace: &'a PidNamespace,
}

/// Starts a program at the site.
fn spawn(command: &mut Command, site: &ServerSite<'_>) -> io::Result<Child> {
    site.network.run(|| {
        site.pid_namespace.enter()?;
        command.spawn()
    })
}

/// Whether a TCP socket listens or a UDP socket is bound in the network namespace of this thread.
fn has_listener() -> bool {
    let has_socket = |table: &str, state: &str| {
        let text = fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
        text.lines().skip(1).any(|line| line.split_whitespace().nth(3) == Some(state))
    };
    has_socket("tcp", "0A") || has_socket("tcp6", "0A") || has_socket("udp", "07") || has_socket("udp6", "07")
}

/// Path of a program; also searches the directories that only root has in `PATH`.
pub(crate) fn find_program(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin", "/usr/local/sbin", "/sbin"].map(PathBuf::from));
    dirs.map(|dir| dir.join(program)).find(|file| file.is_file())
}

fn last_line(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().last().unwrap_or_default().trim().to_string()
}

/// A file name, percent-encoded for a URL (RFC 3986 section 2.1).
fn percent_encoded(name: &str) -> String {
    const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    utf8_percent_encode(name, RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_in_urls() {
        assert_eq!(percent_encoded("big-1.0_a~.iso"), "big-1.0_a~.iso");
        assert_eq!(percent_encoded("a b/ä"), "a%20b%2F%C3%A4");
    }

    #[test]
    fn a_program_is_found_by_name() {
        assert!(find_program("sh").is_some());
        assert!(find_program("no-such-program-of-marline").is_none());
    }
}
