//! Testbed of `bench proxy`: emulated links or plain veth pairs with nginx as the server, a running proxy, and raw
//! responses of the proxy as a player reads them.
//!
//! 1. Everything is fresh for each measurement: no cached TCP metrics, no learned links, no open connection.
//! 2. The proxy is `marline` as a child process with an empty home directory.

use std::io::{self, BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use marline_sim::spec::LinkSpec;
use marline_sys::process::{self, ProcessUsage};
use rustix::process::{Pid, Signal, kill_process};

use super::super::veth_testbed::VethTestbed;
use crate::http::{HttpConnection, timed_out};
use crate::{Lab, LabError, LabSpec, Service};

/// The testbed; see the [module documentation](self).
pub(super) enum ProxyTestbed {
    /// With emulated links.
    Lab(Box<Lab>),
    /// With veth pairs, without emulation.
    Veth(Box<VethTestbed>),
}

/// How the origin server serves the video.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OriginProtocol {
    /// HTTP/1.1.
    Http,
    /// HTTP/1.1 over TLS.
    Https,
    /// HTTP/2 over TLS.
    H2,
}

impl OriginProtocol {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::H2 => "h2",
        }
    }
}

impl ProxyTestbed {
    /// Starts emulated links with a server of this file; the links start at once.
    pub(super) fn start_lab(links: &[LinkSpec], file: &Path, seed: u64) -> Result<Self, LabError> {
        let spec = LabSpec { seed, service: Service::Files(file.to_path_buf()), ..LabSpec::new(links.to_vec()) };
        let lab = Lab::start(&spec)?;
        lab.start_links()?;
        Ok(Self::Lab(Box::new(lab)))
    }

    /// Creates a veth pair per name, with a server of this file.
    pub(super) fn start_veth(names: &[&str], file: &Path) -> Result<Self, LabError> {
        VethTestbed::start(names, &Service::Files(file.to_path_buf())).map(|wired| Self::Veth(Box::new(wired)))
    }

    /// Starts a command in the client namespace.
    pub(super) fn spawn(&self, command: &mut Command) -> Result<Child, LabError> {
        let child = match self {
            Self::Lab(lab) => lab.spawn(command),
            Self::Veth(wired) => wired.spawn(command),
        };
        let program = command.get_program().to_string_lossy().into_owned();
        child.map_err(|source| LabError::Start { program, source })
    }

    /// Runs `work` on a thread in the client namespace.
    pub(super) fn run_at_client<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        match self {
            Self::Lab(lab) => lab.run_at_client(work),
            Self::Veth(wired) => wired.run_at_client(work),
        }
    }

    /// URL of the file on the origin server.
    pub(super) fn url(&self, origin: OriginProtocol) -> String {
        let (plain, secure) = match self {
            Self::Lab(lab) => lab.urls().unwrap_or_default(),
            Self::Veth(wired) => (wired.server().url(), wired.server().secure_url()),
        };
        match origin {
            OriginProtocol::Http => plain,
            OriginProtocol::H2 => secure,
            // Port 444 of the server supports HTTP/1.1 only.
            OriginProtocol::Https => secure.replacen("10.99.0.1/", "10.99.0.1:444/", 1),
        }
    }

    /// Certificate file of the authority that signed the server's certificate.
    pub(super) fn ca_file(&self) -> Option<PathBuf> {
        match self {
            Self::Lab(lab) => lab.ca_file(),
            Self::Veth(wired) => wired.server().ca_file().map(Path::to_path_buf),
        }
    }

    /// Why the measurement is unreliable; `None` if it is reliable.
    pub(super) fn unreliable_reason(&self) -> Option<String> {
        match self {
            Self::Lab(lab) => {
                let emulation = lab.emulation_report().ok()?;
                let max_lateness = emulation.lateness.max;
                emulation.unreliable_reason().or_else(|| {
                    (max_lateness > MAX_LATENESS).then(|| format!("a packet was {max_lateness:.0?} late"))
                })
            }
            Self::Veth(_) => None,
        }
    }
}

pub(super) struct ProxyProcess {
    child: Child,
    pub(super) address: SocketAddr,
}

impl ProxyProcess {
    /// Starts a proxy over these links, with further arguments.
    pub(super) fn start(world: &ProxyTestbed, links: &[&str], extra_args: &[&str]) -> Result<Self, LabError> {
        let program = crate::program::marline()?;
        let mut command = Command::new(program);
        command.args(["proxy", "--listen", "127.0.0.1:0", "--json", "--quiet"]).args(extra_args);
        command.args(links.iter().flat_map(|link| ["--link", link]));
        if let Some(authority) = world.ca_file() {
            command.arg("--ca-file").arg(authority);
        }
        command.env("HOME", "/nonexistent").env("XDG_CONFIG_HOME", "/nonexistent");
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = world.spawn(&mut command)?;
        let mut line = String::new();
        let result = child.stdout.take().map(|out| BufReader::new(out).read_line(&mut line));
        result.transpose().map_err(LabError::at_step("the proxy's address"))?;
        let ready_message: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        let address = ready_message["listen"].as_str().and_then(|address| address.parse().ok());
        match address {
            Some(address) => Ok(Self { child, address }),
            None => Err(LabError::Server("marline proxy did not start".into())),
        }
    }

    /// URL under which the proxy serves a URL.
    pub(super) fn proxied_url(&self, url: &str) -> String {
        format!("http://{}/{url}", self.address)
    }

    /// Peak memory so far, in bytes.
    pub(super) fn peak_rss(&self) -> u64 {
        crate::peak_rss::peak_rss_of(self.child.id())
    }

    /// Ends the proxy and returns its resource usage.
    pub(super) fn stop(self) -> Result<ProcessUsage, LabError> {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        process::wait_with_usage(self.child.id()).map_err(LabError::at_step("the proxy's end"))
    }
}

/// A response of the proxy whose head has been read.
pub(super) struct ProxyResponse {
    connection: HttpConnection,
    pub(super) status: u16,
    /// Offset of the next byte.
    pub(super) offset: u64,
}

impl ProxyResponse {
    /// Requests the bytes from an offset on; must run on a thread in the client namespace.
    pub(super) fn request(proxy: SocketAddr, url: &str, offset: u64, player: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(proxy)?;
        stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
        stream.set_nodelay(true)?;
        let mut connection = HttpConnection::new(stream);
        let fields = [("User-Agent", player), ("Range", &format!("bytes={offset}-"))];
        connection.get(&proxy.to_string(), &format!("/{url}"), &fields)?;
        let status = connection.read_head(timed_out)?.status;
        Ok(Self { connection, status, offset })
    }

    /// Returns an error unless the status is 200 or 206.
    pub(super) fn expect_success(self) -> io::Result<Self> {
        match self.status {
            200 | 206 => Ok(self),
            status => Err(io::Error::other(format!("the proxy responds {status}"))),
        }
    }

    /// Sets the read timeout.
    pub(super) fn set_timeout(&self, time: Duration) -> io::Result<()> {
        self.connection.set_read_timeout(time)
    }

    /// Reads the next bytes. That none arrive within the read timeout is an error (see [`is_timeout`](crate::http::is_timeout)).
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.connection.read(buffer)?.ok_or(io::ErrorKind::TimedOut)?;
        self.offset += length as u64;
        Ok(length)
    }
}

/// A pause of the machine of this length could affect a player that buffers one second.
const MAX_LATENESS: Duration = Duration::from_millis(20);
/// Longer than any response should take.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
