//! Where a proxy is measured: over emulated links or over plain wires, with nginx at the other end.
//!
//! In: links, what is served. Out: a place in which commands are started and sockets opened; a running proxy in it; raw
//! answers of that proxy, as a player reads them.
//!
//! 1. Everything is fresh for each measurement: no TCP metrics, no learnt links, no warm connection.
//! 2. The proxy is `marline` as a child process, with a home of nobody's.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use marline_sim::spec::LinkSpec;
use marline_sys::process::{self, Usage};
use rustix::process::{Pid, Signal, kill_process};

use super::super::wired::Wired;
use crate::{Lab, LabError, LabSpec, Service};

/// See the [module](self).
pub(super) enum World {
    /// Emulated links.
    Lab(Box<Lab>),
    /// Wires without any emulation.
    Wires(Box<Wired>),
}

/// How the film is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// HTTP/1.1.
    Http,
    /// HTTP/1.1 over TLS.
    Https,
    /// HTTP/2 over TLS.
    H2,
}

impl Origin {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::H2 => "h2",
        }
    }
}

impl World {
    /// Emulated links with this file at the other end; they run from now on.
    pub(super) fn lab(links: &[LinkSpec], file: &Path, seed: u64) -> Result<Self, LabError> {
        let spec = LabSpec { seed, service: Service::Files(file.to_path_buf()), ..LabSpec::new(links.to_vec()) };
        let lab = Lab::start(&spec)?;
        lab.begin()?;
        Ok(Self::Lab(Box::new(lab)))
    }

    /// So many wires with this file at the other end.
    pub(super) fn wires(names: &[&str], file: &Path) -> Result<Self, LabError> {
        Wired::start(names, &Service::Files(file.to_path_buf())).map(|wired| Self::Wires(Box::new(wired)))
    }

    /// Starts a command at the client's end.
    pub(super) fn spawn(&self, command: &mut Command) -> Result<Child, LabError> {
        let child = match self {
            Self::Lab(lab) => lab.spawn(command),
            Self::Wires(wired) => wired.spawn(command),
        };
        let program = command.get_program().to_string_lossy().into_owned();
        child.map_err(|source| LabError::Start { program, source })
    }

    /// Runs `work` at the client's end.
    pub(super) fn inside<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        match self {
            Self::Lab(lab) => lab.inside(work),
            Self::Wires(wired) => wired.inside(work),
        }
    }

    /// The file's address.
    pub(super) fn url(&self, origin: Origin) -> String {
        let (plain, secure) = match self {
            Self::Lab(lab) => lab.urls().unwrap_or_default(),
            Self::Wires(wired) => (wired.server().url(), wired.server().secure_url()),
        };
        match origin {
            Origin::Http => plain,
            Origin::H2 => secure,
            // The port that knows nothing newer.
            Origin::Https => secure.replacen("10.99.0.1/", "10.99.0.1:444/", 1),
        }
    }

    /// Who vouches for the server.
    pub(super) fn authority(&self) -> Option<PathBuf> {
        match self {
            Self::Lab(lab) => lab.authority(),
            Self::Wires(wired) => wired.server().authority().map(Path::to_path_buf),
        }
    }

    /// Why what was measured should not be trusted, if so.
    pub(super) fn suspect(&self) -> Option<String> {
        match self {
            Self::Lab(lab) => {
                let emulation = lab.emulation().ok()?;
                let late = emulation.lateness.max;
                emulation.suspect().or_else(|| (late > TOO_LATE).then(|| format!("a packet was {late:.0?} late")))
            }
            Self::Wires(_) => None,
        }
    }
}

/// A proxy that runs.
pub(super) struct Proxy {
    child: Child,
    pub(super) address: SocketAddr,
}

impl Proxy {
    /// Over these links, with further words of the command line.
    pub(super) fn start(world: &World, links: &[&str], words: &[&str]) -> Result<Self, LabError> {
        let program = crate::program::marline()?;
        let mut command = Command::new(program);
        command.args(["proxy", "--listen", "127.0.0.1:0", "--json", "--quiet"]).args(words);
        command.args(links.iter().flat_map(|link| ["--link", link]));
        if let Some(authority) = world.authority() {
            command.arg("--ca-file").arg(authority);
        }
        command.env("HOME", "/nonexistent").env("XDG_CONFIG_HOME", "/nonexistent");
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = world.spawn(&mut command)?;
        let mut line = String::new();
        let said = child.stdout.take().map(|out| BufReader::new(out).read_line(&mut line));
        said.transpose().map_err(LabError::at("the proxy's address"))?;
        let said: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        let address = said["listen"].as_str().and_then(|address| address.parse().ok());
        match address {
            Some(address) => Ok(Self { child, address }),
            None => Err(LabError::Server("marline proxy did not start".into())),
        }
    }

    /// The address at which a player finds a URL.
    pub(super) fn of(&self, url: &str) -> String {
        format!("http://{}/{url}", self.address)
    }

    /// The most memory that it held so far, in bytes.
    pub(super) fn memory(&self) -> u64 {
        crate::memory::high_water(self.child.id())
    }

    /// Ends it; what it used.
    pub(super) fn end(self) -> Result<Usage, LabError> {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        process::wait(self.child.id()).map_err(LabError::at("the proxy's end"))
    }
}

/// An answer of the proxy, of which the head was read.
pub(super) struct Answer {
    stream: BufReader<TcpStream>,
    pub(super) status: u16,
    /// Where the next byte is from.
    pub(super) at: u64,
}

impl Answer {
    /// Asks, at the client's end, for the bytes from an offset on.
    pub(super) fn ask(proxy: SocketAddr, url: &str, from: u64, player: &str) -> io::Result<Self> {
        let mut stream = TcpStream::connect(proxy)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let head =
            format!("GET /{url} HTTP/1.1\r\nHost: {proxy}\r\nUser-Agent: {player}\r\nRange: bytes={from}-\r\n\r\n");
        stream.write_all(head.as_bytes())?;
        let mut stream = BufReader::with_capacity(64 * 1024, stream);
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|word| word.parse().ok());
        let status = status.ok_or_else(|| io::Error::other("the proxy closed the connection"))?;
        while line != "\r\n" {
            line.clear();
            if stream.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(Self { stream, status, at: from })
    }

    /// An error unless it has what was asked for.
    pub(super) fn good(self) -> io::Result<Self> {
        match self.status {
            200 | 206 => Ok(self),
            status => Err(io::Error::other(format!("the proxy answers {status}"))),
        }
    }

    /// No longer than this is waited for bytes.
    pub(super) fn wait_at_most(&self, time: Duration) -> io::Result<()> {
        self.stream.get_ref().set_read_timeout(Some(time))
    }

    /// Some of the next bytes.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.stream.read(buffer)?;
        self.at += length as u64;
        Ok(length)
    }
}

/// A pause of the machine that a player of one second may feel.
const TOO_LATE: Duration = Duration::from_millis(20);
/// Longer than any answer should take.
const PATIENCE: Duration = Duration::from_secs(30);
