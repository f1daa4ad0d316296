//! Runs `marline proxy` on free ports, and clients of it: curl for complete responses, and [`Player`], a raw connection that
//! reads as slowly as a test wants.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A running proxy; it is killed when this is dropped.
pub(crate) struct Proxy {
    child: Child,
    pub(crate) address: SocketAddr,
    /// URL of the status port, with the token and a trailing slash.
    pub(crate) status_url: String,
    prefix: Vec<String>,
}

/// A response: status, header fields with lower-case names, body.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Proxy {
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::with_prefix(Vec::new(), args)
    }

    /// Starts the proxy, and later its clients, with a command prefix.
    pub(crate) fn with_prefix(before: Vec<String>, args: &[&str]) -> Self {
        Self::listening_at(before, "127.0.0.1:0", args)
    }

    /// The same with this listening address.
    pub(crate) fn listening_at(before: Vec<String>, listen: &str, args: &[&str]) -> Self {
        let mut all = before.clone();
        let fixed_args = [env!("CARGO_BIN_EXE_marline"), "proxy", "--listen", listen, "--json", "--quiet"];
        all.extend(fixed_args.iter().chain(args).map(|arg| (*arg).to_owned()));
        let mut child = Command::new(&all[0])
            .args(&all[1..])
            .env_clear()
            .env("HOME", "/nonexistent")
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready_line: serde_json::Value = serde_json::from_str(&line).unwrap();
        Self {
            child,
            address: ready_line["listen"].as_str().unwrap().parse().unwrap(),
            status_url: ready_line["status"].as_str().unwrap().to_owned(),
            prefix: before,
        }
    }

    /// The address at the media port under which a player requests a URL.
    pub(crate) fn media_url(&self, url: &str) -> String {
        format!("http://{}/{url}", self.address)
    }

    /// Runs curl with these arguments in the proxy's namespace.
    pub(crate) fn curl(&self, args: &[&str]) -> Output {
        let mut all = self.prefix.clone();
        all.extend(["curl", "-sS", "--max-time", "60"].iter().chain(args).map(|arg| (*arg).to_owned()));
        Command::new(&all[0]).args(&all[1..]).env_remove("http_proxy").output().unwrap()
    }

    /// The response of the media port for a URL.
    pub(crate) fn get(&self, url: &str, args: &[&str]) -> Reply {
        self.request(&self.media_url(url), args)
    }

    /// The response at an address, with further options of curl.
    pub(crate) fn request(&self, address: &str, args: &[&str]) -> Reply {
        let mut all = vec!["-i", "--suppress-connect-headers", address];
        all.extend(args);
        let output = self.curl(&all);
        let head = output.stdout.windows(4).position(|end| end == b"\r\n\r\n");
        let Some(end) = head else { panic!("{address}: {}", String::from_utf8_lossy(&output.stderr)) };
        let head = String::from_utf8(output.stdout[..end].to_vec()).unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let fields = lines.filter_map(|line| line.split_once(": "));
        let fields = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
        Reply { status, fields, body: output.stdout[end + 4..].to_vec() }
    }

    /// The current status.
    pub(crate) fn status(&self) -> serde_json::Value {
        let output = self.curl(&[&format!("{}status", self.status_url)]);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Waits until the status satisfies a condition and returns that status; `description` is for the error message.
    pub(crate) fn wait_for_status(
        &self,
        description: &str,
        condition: impl Fn(&serde_json::Value) -> bool,
    ) -> serde_json::Value {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let now = self.status();
            if condition(&now) {
                return now;
            }
            assert!(Instant::now() < end, "never {description}: {now:#}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it by a signal; returns the exit code.
    pub(crate) fn stop(mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A player that reads exactly as much as a test asks for.
pub(crate) struct Player {
    stream: BufReader<TcpStream>,
}

impl Player {
    /// Requests the bytes from an offset on and reads the response head.
    pub(crate) fn start(proxy: &Proxy, url: &str, from: u64) -> Self {
        Self::on(TcpStream::connect(proxy.address).unwrap(), proxy, url, from)
    }

    /// The same on an open connection.
    pub(crate) fn on(mut stream: TcpStream, proxy: &Proxy, url: &str, from: u64) -> Self {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let (address, agent) = (proxy.address, "Player");
        let head = format!(
            "GET /{url} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: {agent}\r\nRange: bytes={from}-\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        assert!(line.starts_with("HTTP/1.1 206"), "{line}");
        while line != "\r\n" {
            line.clear();
            assert!(stream.read_line(&mut line).unwrap() > 0);
        }
        Self { stream }
    }

    /// Reads exactly the next `len` bytes.
    pub(crate) fn read(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Reads at most `most` bytes until the connection ends or breaks.
    pub(crate) fn read_remaining(&mut self, most: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        let _ = self.stream.by_ref().take(most as u64).read_to_end(&mut bytes);
        bytes
    }
}
