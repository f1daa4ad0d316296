//! One upload by curl, observed at the server's end as it arrives. Its result is that of a download
//! ([`super::download`]).
//!
//! 1. The receiver is a socket of this process in the server's network, with a stock kernel's TCP; nginx would report
//!    the bytes only when all have arrived.
//! 2. The sender is curl at the client's end with the client's kernel, whose reductions of the congestion window are to be undone.
//! 3. `Expect: 100-continue` is not sent: it costs a round trip that is not part of the comparison.

use std::io::{self, Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::download::{Download, Received, follow};
use crate::accel::topology;
use crate::server::Payload;
use crate::{Lab, LabError};

/// The port for uploads. Our choice: any that nginx does not use.
const PORT: u16 = 8080;
/// How often a receiver checks whether it is to stop.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Longer than the head of a request.
const MAX_HEAD: usize = 4096;

/// Starts curl; times count from `zero`.
pub(crate) fn start(lab: &Lab, payload: &Payload, zero: Instant) -> Result<Download, LabError> {
    let address = crate::wan_topology::site_address(topology::server_site_index());
    let listen = || {
        let listener = TcpListener::bind((address, PORT))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    let listener = lab
        .run_at_site(topology::server_site_index(), listen)
        .map_err(LabError::at_step("listening for an upload"))?;
    let stop = Arc::new(AtomicBool::new(false));
    let (path, stop_requested) = (payload.path(), Arc::clone(&stop));
    let reader = std::thread::spawn(move || receive(&listener, &path, zero, &stop_requested));
    let mut command = Command::new("curl");
    command.args(["-sS", "--http1.1", "-H", "Expect:", "-T"]).arg(payload.path());
    command.arg(format!("http://{address}:{PORT}/upload"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = lab.spawn(&mut command).map_err(|source| {
        stop.store(true, Ordering::Relaxed);
        LabError::Start { program: "curl".into(), source }
    })?;
    Ok(Download::of(child, reader, zero, stop))
}

/// Receives one upload; if it is stopped, what has arrived counts.
fn receive(listener: &TcpListener, file: &Path, zero: Instant, stop: &AtomicBool) -> io::Result<Received> {
    let stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(Received::default());
        }
        std::thread::sleep(STOP_CHECK_INTERVAL / 10);
    };
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(STOP_CHECK_INTERVAL))?;
    let length = std::fs::metadata(file)?.len();
    let mut answer = stream.try_clone()?;
    let mut body = Body { stream, stop };
    body.skip_head()?;
    let received = follow(body.by_ref().take(length), file, zero)?;
    if received.bytes == length {
        answer.write_all(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
    }
    Ok(received)
}

/// The body of the request, until it ends or is stopped.
struct Body<'a> {
    stream: TcpStream,
    stop: &'a AtomicBool,
}

impl Body<'_> {
    /// Skips the head one byte at a time: what follows belongs to the file.
    fn skip_head(&mut self) -> io::Result<()> {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() == MAX_HEAD || self.read(&mut byte)? == 0 {
                return Err(io::Error::other("an upload without a head"));
            }
            head.extend_from_slice(&byte);
        }
        Ok(())
    }
}

impl Read for Body<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read(into) {
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
                // A sender that is killed during the upload may reset it.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(0),
                read => return read,
            }
            if self.stop.load(Ordering::Relaxed) {
                return Ok(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(body: &'static [u8], file: &[u8]) -> io::Result<Received> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, file).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let sender = std::thread::spawn(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"PUT /upload HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            stream.write_all(body).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut response = String::new();
            let _ = stream.read_to_string(&mut response);
            response
        });
        let received = receive(&listener, &path, Instant::now(), &AtomicBool::new(false));
        let response = sender.join().unwrap();
        let is_complete = received.as_ref().is_ok_and(|received| received.bytes == file.len() as u64);
        assert_eq!(response.starts_with("HTTP/1.1 201"), is_complete, "{response}");
        received
    }

    #[test]
    fn an_upload_is_compared_as_it_arrives_and_answered_when_complete() {
        let outcome = run(b"0123456789", b"0123456789").unwrap();
        assert_eq!((outcome.bytes, outcome.wrong), (10, None));
        let part = run(b"0123x", b"0123456789").unwrap();
        assert_eq!((part.bytes, part.wrong), (5, Some(4)));
    }
}
