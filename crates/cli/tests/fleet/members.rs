//! Helpers of the fleet tests: certificates of members, child processes of `marline`, an echo server, tunnels through an edge.
//!
//! A process is killed when its [`Running`] is dropped. Everything listens on the loopback interface only.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;

pub(crate) const MARLINE: &str = env!("CARGO_BIN_EXE_marline");
/// Limit for waiting; generous, because no test measures it.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(90);

/// A command that runs `marline` in `dir` with these arguments, separated by spaces.
pub(crate) fn command(dir: &Path, args: &str) -> Command {
    let mut command = Command::new(MARLINE);
    command.current_dir(dir).args(args.split(' ')).stdin(Stdio::null());
    command
}

/// Runs `marline` to its end and returns its output.
pub(crate) fn marline(dir: &Path, args: &str) -> Output {
    command(dir, args).output().unwrap()
}

/// A directory with a certificate authority and the certificates of the relay `r1` and the edge `e1`.
pub(crate) fn members() -> TempDir {
    let dir = TempDir::new().unwrap();
    for args in [
        "fleet ca init --ca-dir ca --name test",
        "fleet ca issue relay r1 --ca-dir ca --address 127.0.0.1 --out .",
        "fleet ca issue edge e1 --ca-dir ca --out .",
    ] {
        let made = marline(dir.path(), args);
        assert!(made.status.success(), "{args}: {}", String::from_utf8_lossy(&made.stderr));
    }
    dir
}

/// A child process that logs the address where it listens; it is killed when this is dropped.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    lines: BufReader<ChildStderr>,
}

impl Running {
    pub(crate) fn start(dir: &Path, args: &str) -> Self {
        Self::of(&mut command(dir, args))
    }

    /// Starts the command and waits until it logs its address.
    pub(crate) fn of(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap());
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut running = Self { child, address: nowhere, lines };
        let mut output = String::new();
        while running.address == nowhere {
            let line = running.line();
            assert!(!line.is_empty(), "{command:?} has ended: {output}");
            if let Some((_, remaining)) = line.split_once("listens on ") {
                running.address = remaining.split([' ', ',', '\n']).next().unwrap().parse().unwrap();
            }
            output += &line;
        }
        running
    }

    /// The next line of its standard error; empty when it has ended.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }

    /// Reads up to and including the next line that contains `text`, and returns everything that was read.
    pub(crate) fn line_with(&mut self, text: &str) -> String {
        let mut output = String::new();
        while !output.contains(text) {
            let line = self.line();
            assert!(!line.is_empty(), "never `{text}`: {output}");
            output += &line;
        }
        output
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    /// Sends the signal; returns the exit code and the rest of the standard error.
    pub(crate) fn stop(mut self, signal: &str) -> (Option<i32>, String) {
        self.signal(signal);
        let mut log = String::new();
        self.lines.read_to_string(&mut log).unwrap();
        (self.child.wait().unwrap().code(), log)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves as an echo server on this listener.
pub(crate) fn echo(listener: TcpListener) {
    for socket in listener.incoming().flatten() {
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut &socket, &mut &socket);
            let _ = socket.shutdown(std::net::Shutdown::Write);
        });
    }
}

/// Starts an echo server in this process, on a free port.
pub(crate) fn server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || echo(listener));
    address
}

/// Opens a CONNECT tunnel through an edge; returns the status line of the response and the connection.
pub(crate) fn tunnel(edge: SocketAddr, server: SocketAddr) -> (String, TcpStream) {
    let mut program = TcpStream::connect(edge).unwrap();
    program.set_read_timeout(Some(TIMEOUT)).unwrap();
    program.write_all(format!("CONNECT {server} HTTP/1.1\r\nHost: {server}\r\n\r\n").as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        program.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    let head = String::from_utf8(head).unwrap();
    (head.lines().next().unwrap().to_owned(), program)
}

/// Status line of an established tunnel.
pub(crate) const ESTABLISHED: &str = "HTTP/1.1 200 Connection established";

/// Sends 100 kB through the echo server and compares what returns.
pub(crate) fn check_echo(program: &mut TcpStream) -> std::io::Result<()> {
    let sent: Vec<u8> = (0..100_000_u32).map(|n| (n.wrapping_mul(7919) >> 7) as u8).collect();
    let (mut writer, copy) = (program.try_clone()?, sent.clone());
    let writing = std::thread::spawn(move || writer.write_all(&copy));
    let mut received = vec![0; sent.len()];
    program.read_exact(&mut received)?;
    writing.join().unwrap()?;
    assert!(received == sent);
    Ok(())
}
