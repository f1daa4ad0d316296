//! Two links to one server in new network namespaces. Tests can cut, remove, restore and slow down the links.
//!
//! ```text
//!   client                        server
//!   wifi0 10.77.1.2 ───────── peer1 10.77.1.1 ─┐
//!   lte0  10.77.2.2 ───────── peer2 10.77.2.1 ─┴─ 203.0.113.9
//! ```
//!
//! The client has a default route over each link; the server recognizes the link by the client's address. The server's
//! address belongs to a documentation network (RFC 5737) and not to a private one, so that its name server may be queried
//! over each link. Creating namespaces needs root; without it, a test prints that it was skipped.

use std::fs::File;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use rustix::fd::AsFd;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::program::Program;
use crate::server::{Request, Response, Server};

/// The namespaces of client and server; they are removed when this is dropped.
pub(crate) struct Network {
    name: String,
}

impl Network {
    /// Creates the namespaces and both links. None, with a printed reason, where that is not permitted.
    pub(crate) fn two_links() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        static SWEPT: Once = Once::new();
        SWEPT.call_once(sweep);
        let name = format!("mlf{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let network = Self { name };
        let (c, s) = (network.client(), network.server());
        let made = [&c, &s].iter().all(|ns| {
            Command::new("ip").args(["netns", "add", ns]).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
        });
        if !made {
            eprintln!("skipped: creating network namespaces needs root");
            return None;
        }
        batch(&s, "link set lo up\naddress add 203.0.113.9/32 dev lo\n");
        batch(&c, "link set lo up\n");
        network.add_link("wifi0");
        network.add_link("lte0");
        Some(network)
    }

    pub(crate) fn client(&self) -> String {
        format!("{}c", self.name)
    }

    pub(crate) fn server(&self) -> String {
        format!("{}s", self.name)
    }

    /// Creates the link `wifi0` or `lte0`, also after it was deleted.
    pub(crate) fn add_link(&self, name: &str) {
        let (net, peer, kind) = if name == "wifi0" { (1, "peer1", "wifi") } else { (2, "peer2", "lte") };
        let server = self.server();
        self.client_ip(&format!(
            "link add {name} type veth peer name {peer} netns {server}\n\
             link set {name} alias \"marline-lab kind={kind}\"\n\
             address add 10.77.{net}.2/24 dev {name}\n"
        ));
        self.server_ip(&format!("address add 10.77.{net}.1/24 dev {peer}\nlink set {peer} up\n"));
        self.client_ip(&format!(
            "link set {name} up\nroute add default via 10.77.{net}.1 dev {name} metric {net}00\n"
        ));
    }

    /// Runs `ip` commands in the client's namespace, one per line.
    pub(crate) fn client_ip(&self, lines: &str) {
        batch(&self.client(), lines);
    }

    /// Runs `ip` commands in the server's namespace, one per line.
    pub(crate) fn server_ip(&self, lines: &str) {
        batch(&self.server(), lines);
    }

    /// Drops all packets on a link from now on, in both directions; carrier, address and routes stay.
    pub(crate) fn cut(&self, name: &str) {
        // A queue of one byte holds no packet.
        self.change_qdisc(name, "add", "bfifo limit 1");
    }

    /// Ends the effect of [`Self::cut`].
    pub(crate) fn uncut(&self, name: &str) {
        self.change_qdisc(name, "del", "");
    }

    fn change_qdisc(&self, name: &str, operation: &str, queue: &str) {
        let peer = if name == "wifi0" { "peer1" } else { "peer2" };
        for (namespace, device) in [(self.client(), name), (self.server(), peer)] {
            let args = format!("-n {namespace} qdisc {operation} dev {device} root {queue}");
            assert!(Command::new("tc").args(args.split_whitespace()).status().unwrap().success(), "tc {args}");
        }
    }

    /// Starts a server that is reachable over both links.
    pub(crate) fn serve(&self, handler: impl Fn(&Request) -> Response + Send + Sync + 'static) -> Server {
        let listener = self.in_server_namespace(|| TcpListener::bind("203.0.113.9:0"));
        Server::on(listener, handler)
    }

    /// Starts a second server at another address and the same port.
    pub(crate) fn serve_second(
        &self,
        first: &Server,
        handler: impl Fn(&Request) -> Response + Send + Sync + 'static,
    ) -> Server {
        self.server_ip("address add 203.0.113.10/32 dev lo\n");
        let address = SocketAddr::from((SECOND_ADDRESS, first.address.port()));
        Server::on(self.in_server_namespace(move || TcpListener::bind(address)), handler)
    }

    /// Starts a name server that resolves `file.test` to 203.0.113.9 and answers "no such name" for everything else.
    /// `is_answered` is called with the client's address for each query; it returns whether the query is answered.
    pub(crate) fn name_server(&self, is_answered: impl Fn(&str) -> bool + Send + 'static) {
        self.serve_dns(move |from| is_answered(from).then_some(("file.test", ADDRESS)));
    }

    /// Starts a name server that knows one name, which depends on the client's address.
    pub(crate) fn name_server_by_client(&self, known: impl Fn(&str) -> &'static str + Send + 'static) {
        self.serve_dns(move |from| Some((known(from), ADDRESS)));
    }

    /// Starts a name server like that of a CDN: `file.test` resolves over `wifi0` to the first server, over `lte0` to the
    /// second one.
    pub(crate) fn cdn_name_server(&self) {
        self.serve_dns(|from| {
            Some(("file.test", if from.starts_with("10.77.1.") { ADDRESS } else { SECOND_ADDRESS }))
        });
    }

    /// Starts a name server that knows the name and address that `known` returns, and does not respond if it returns none.
    fn serve_dns(&self, known: impl Fn(&str) -> Option<(&'static str, Ipv4Addr)> + Send + 'static) {
        let socket = self.in_server_namespace(|| UdpSocket::bind("203.0.113.9:53"));
        thread::spawn(move || {
            let mut query = [0; 512];
            while let Ok((len, from)) = socket.recv_from(&mut query) {
                if let Some((known, address)) = known(&from.ip().to_string()) {
                    let _ = socket.send_to(&dns_response(&query[..len], known, address), from);
                }
            }
        });
    }

    /// Runs `make` in the server's namespace; the socket or process that it creates stays there.
    pub(crate) fn in_server_namespace<T: Send + 'static>(
        &self,
        make: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> T {
        Self::in_namespace(&self.server(), make)
    }

    /// Runs `make` in the namespace of this name.
    pub(crate) fn in_namespace<T: Send + 'static>(
        namespace: &str,
        make: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> T {
        let namespace = File::open(format!("/run/netns/{namespace}")).unwrap();
        let worker = thread::spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            make().unwrap()
        });
        worker.join().unwrap()
    }

    /// The program in the client's namespace, with the name server 203.0.113.9. Its `resolv.conf` is in a mount namespace of
    /// the program, so that nothing remains even if the test is killed.
    pub(crate) fn program(&self) -> Program {
        Program::new().with_prefix(self.client_prefix())
    }

    /// Command prefix that runs a program in the client's namespace.
    pub(crate) fn client_prefix(&self) -> Vec<String> {
        const SCRIPT: &str = "mount -t tmpfs none /mnt && echo nameserver 203.0.113.9 >/mnt/resolv.conf \
            && mount --bind /mnt/resolv.conf /etc/resolv.conf && umount --lazy /mnt && exec \"$@\"";
        let args = ["ip", "netns", "exec", &self.client(), "unshare", "--mount", "sh", "-c", SCRIPT, "sh"];
        args.map(str::to_owned).to_vec()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in [self.client(), self.server()] {
            let _ = Command::new("ip").args(["netns", "del", &name]).stderr(Stdio::null()).status();
        }
    }
}

/// Removes namespaces of killed tests, recognized by a process ID that no longer exists.
fn sweep() {
    for entry in std::fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let process =
            name.strip_prefix("mlf").and_then(|remaining| remaining.split_once('-')).map(|(process, _)| process);
        let is_number = |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if process.filter(is_number).is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            let _ = Command::new("ip").args(["netns", "del", &name]).stderr(Stdio::null()).status();
        }
    }
}

fn batch(namespace: &str, lines: &str) {
    let mut child =
        Command::new("ip").args(["-n", namespace, "-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "ip in {namespace}: {lines}");
}

/// The response to a DNS query (RFC 1035 section 4.1): the address for type A of the known name, otherwise no such name.
fn dns_response(query: &[u8], known: &str, address: Ipv4Addr) -> Vec<u8> {
    let mut wire: Vec<u8> =
        known.split('.').flat_map(|label| [&[label.len() as u8], label.as_bytes()].concat()).collect();
    wire.push(0);
    let known = query.windows(wire.len()).any(|window| window == wire);
    let end = query.iter().skip(12).position(|byte| *byte == 0).map_or(query.len(), |at| 12 + at + 5);
    let is_a = query.get(end - 4..end - 2) == Some(&[0, 1]);
    let mut answer = query[..2].to_vec();
    answer.extend([0x81, if known { 0x80 } else { 0x83 }, 0, 1, 0, u8::from(known && is_a), 0, 0, 0, 0]);
    answer.extend_from_slice(&query[12..end]);
    if known && is_a {
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        answer.extend(address.octets());
    }
    answer
}

const ADDRESS: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 9);
/// Address of the second server.
const SECOND_ADDRESS: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
