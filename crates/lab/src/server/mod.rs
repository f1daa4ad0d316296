//! What stands at the other end: a real nginx, or any command.

mod certificate;
mod folder;
mod listener;
mod nginx;
mod payload;

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use marline_sys::clock;
use marline_sys::namespace::Network;
use marline_sys::process::Room;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::network::Networks;
use crate::places;
use crate::{LabError, Service};
use certificate::Certificate;
pub use folder::Folder;
pub(crate) use folder::sweep_all;
pub use payload::Payload;

/// A server is given this long to listen.
const PATIENCE: Duration = Duration::from_secs(5);

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    /// Its files; none for a command.
    folder: Option<Folder>,
    authority: Option<PathBuf>,
    address: Ipv4Addr,
    path: String,
}

impl Server {
    /// Starts what the description asks for, and waits until it listens.
    /// `mptcp`: nginx's port 80 speaks it. `place`: where it stands.
    pub(crate) fn start(
        service: &Service,
        mptcp: bool,
        place: usize,
        networks: &Networks,
        room: &Room,
    ) -> Result<Option<Self>, LabError> {
        let no_such = || LabError::Server(format!("there is no place {place}"));
        let site = Site { network: networks.at(place).ok_or_else(no_such)?, address: places::address(place), room };
        match service {
            Service::None => Ok(None),
            Service::Files(path) => Self::nginx(path, mptcp.then_some(networks), &site).map(Some),
            Service::Command(line) => Self::command(line, &site).map(Some),
        }
    }

    fn nginx(path: &Path, mptcp: Option<&Networks>, site: &Site<'_>) -> Result<Self, LabError> {
        let program = find("nginx").ok_or(LabError::Missing { program: "nginx".into(), package: "nginx-light" })?;
        let step = || LabError::at(format!("serving {}", path.display()));
        let path = fs::canonicalize(path).map_err(step())?;
        let folder = Folder::new().map_err(step())?;
        let (root, name) = if path.is_dir() {
            (path.clone(), String::new())
        } else {
            // A link in a directory of its own, so that nothing else of the file's directory is served.
            let root = folder.path().join("www");
            fs::create_dir(&root).map_err(step())?;
            let name = path.file_name().unwrap_or_default();
            std::os::unix::fs::symlink(&path, root.join(name)).map_err(step())?;
            (root, escaped(&name.to_string_lossy()))
        };
        let certificate = Certificate::create(folder.path()).map_err(step())?;
        nginx::configure(folder.path(), &root, &certificate, mptcp.is_some()).map_err(step())?;
        let log = folder.path().join("error.log");
        let mut command = Command::new(program);
        command.arg("-p").arg(folder.path()).arg("-c").arg(folder.path().join("nginx.conf"));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        if let Some(networks) = mptcp {
            listener::hand_over(&mut command, networks).map_err(LabError::at("listening for MPTCP"))?;
        }
        command.stderr(File::create(folder.path().join("stderr.log")).map_err(step())?);
        let mut server = Self {
            child: spawn(&mut command, site).map_err(step())?,
            authority: Some(certificate.authority),
            address: site.address,
            path: name,
            folder: Some(folder),
        };
        let address = site.address;
        let ready = server.wait(site.network, || {
            TcpStream::connect_timeout(&SocketAddr::from((address, 443)), Duration::from_millis(500)).is_ok()
        });
        match ready {
            Ok(true) => Ok(server),
            Ok(false) => Err(server.failure("nginx does not listen")),
            Err(error) => Err(server.failure(&format!("nginx: {error}: {}", last_line(&log)))),
        }
    }

    fn command(line: &str, site: &Site<'_>) -> Result<Self, LabError> {
        let mut command = Command::new("sh");
        // Standard output belongs to the client's command.
        command.arg("-c").arg(line).stdin(Stdio::null()).stdout(io::stderr());
        let child = spawn(&mut command, site);
        let child = child.map_err(|source| LabError::Start { program: line.into(), source })?;
        let mut server = Self { child, folder: None, authority: None, address: site.address, path: String::new() };
        match server.wait(site.network, anybody_listens) {
            Ok(true) => Ok(server),
            Ok(false) => Err(server.failure(&format!("`{line}` does not listen on any port"))),
            Err(error) => Err(server.failure(&format!("`{line}`: {error}"))),
        }
    }

    /// Waits until it is ready; false when it takes too long, an error when it ends.
    fn wait(&mut self, network: &Network, ready: impl Fn() -> bool + Send) -> io::Result<bool> {
        let child = &mut self.child;
        network.run(move || {
            let until = clock::now() + PATIENCE.as_nanos() as u64;
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

    /// The error, once the room has killed what may still run.
    fn failure(mut self, what: &str) -> LabError {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let said = self.folder.as_ref().map(|folder| last_line(&folder.path().join("stderr.log")));
        match said.filter(|text| !text.is_empty()) {
            Some(said) => LabError::Server(format!("{what}: {said}")),
            None => LabError::Server(what.to_string()),
        }
    }

    /// `http://` address of what is served.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/{}", self.address, self.path)
    }

    /// The same over TLS.
    pub(crate) fn secure_url(&self) -> String {
        format!("https://{}/{}", self.address, self.path)
    }

    /// The certificate authority that vouches for it.
    pub(crate) fn authority(&self) -> Option<&Path> {
        self.authority.as_deref()
    }

    /// Waits for the end of a server that was killed.
    pub(crate) fn reap(&mut self) {
        let _ = self.child.wait();
    }
}

/// Where a server stands.
struct Site<'a> {
    network: &'a Network,
    address: Ipv4Addr,
    room: &'a Room,
}

/// Starts a program there.
fn spawn(command: &mut Command, site: &Site<'_>) -> io::Result<Child> {
    site.network.run(|| {
        site.room.enter()?;
        command.spawn()
    })
}

/// Whether a TCP socket listens or a UDP socket is bound in the network of this thread.
fn anybody_listens() -> bool {
    let has = |table: &str, state: &str| {
        let text = fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
        text.lines().skip(1).any(|line| line.split_whitespace().nth(3) == Some(state))
    };
    has("tcp", "0A") || has("tcp6", "0A") || has("udp", "07") || has("udp6", "07")
}

/// The program's path, also from the places where only root looks.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin", "/usr/local/sbin", "/sbin"].map(PathBuf::from));
    places.map(|place| place.join(program)).find(|file| file.is_file())
}

fn last_line(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().last().unwrap_or_default().trim().to_string()
}

/// A file's name as it stands in a URL (RFC 3986 §2.1).
fn escaped(name: &str) -> String {
    const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    utf8_percent_encode(name, RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_in_urls() {
        assert_eq!(escaped("big-1.0_a~.iso"), "big-1.0_a~.iso");
        assert_eq!(escaped("a b/ä"), "a%20b%2F%C3%A4");
    }

    #[test]
    fn a_program_is_found_by_name() {
        assert!(find("sh").is_some());
        assert!(find("no-such-program-of-marline").is_none());
    }
}
