//! A host with two links and a LAN, for tests of what clients may reach through its proxy.
//!
//! ```text
//!   LAN host            this host                      server
//!   192.168.91.2 ─ lan0 192.168.91.1
//!                       wifi0 10.77.1.2, 10.77.1.3 ── 10.77.1.1 ─┐
//!                       lte0  10.77.2.2 ───────────── 10.77.2.1 ─┴─ 203.0.113.9
//! ```
//!
//! `host_service` is a service of this host on all its addresses, `router` one at the private addresses behind its links, and
//! `neighbour` one of the LAN host. Each counts its connections, whether or not they carry a request.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::network::Network;
use crate::proxy::{Proxy, Reply};

/// The networks and services; see the [module documentation](self).
pub(crate) struct Lan {
    pub(crate) network: Network,
    name: String,
    pub(crate) host_service: Service,
    pub(crate) router: Service,
    pub(crate) neighbour: Service,
}

/// A service that counts its connections.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) port: u16,
    connections: Arc<AtomicUsize>,
}

impl Service {
    /// Starts it on all addresses of a namespace. It answers every request with `SECRET`.
    fn start(namespace: &str) -> Self {
        let listener = Network::in_namespace(namespace, || TcpListener::bind("[::]:0"));
        let (port, connections) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
        let counter = Arc::clone(&connections);
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                counter.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || {
                    while matches!(stream.read(&mut [0; 4096]), Ok(1..)) {
                        let answer = "HTTP/1.1 200 OK\r\nETag: \"s\"\r\nContent-Length: 6\r\n\r\nSECRET";
                        let _ = stream.write_all(answer.as_bytes());
                    }
                });
            }
        });
        Self { port, connections }
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// How a program sends a request through the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProxyProtocol {
    /// `GET /http://…` at the proxy's media port.
    Media,
    /// `GET http://…` (absolute form, RFC 9112 section 3.2.2).
    Absolute,
    Connect,
    Socks,
}

pub(crate) const PROXY_PROTOCOLS: [ProxyProtocol; 4] =
    [ProxyProtocol::Media, ProxyProtocol::Absolute, ProxyProtocol::Connect, ProxyProtocol::Socks];

impl Lan {
    /// Creates the networks. None, with a printed reason, where that is not permitted.
    pub(crate) fn new() -> Option<Self> {
        let network = Network::two_links()?;
        let name = format!("{}l", network.client().trim_end_matches('c'));
        assert!(Command::new("ip").args(["netns", "add", &name]).status().unwrap().success());
        network.client_ip(&format!(
            "address add 10.77.1.3/24 dev wifi0\n\
             link add lan0 type veth peer name c0 netns {name}\n\
             address add 192.168.91.1/24 dev lan0\n\
             address add fd91::1/64 dev lan0 nodad\n\
             link set lan0 up\n"
        ));
        let lan = Self {
            host_service: Service::start(&network.client()),
            router: Service::start(&network.server()),
            neighbour: Service::start(&name),
            network,
            name,
        };
        lan.ip(&["link", "set", "lo", "up"]);
        lan.ip(&["address", "add", "192.168.91.2/24", "dev", "c0"]);
        lan.ip(&["address", "add", "fd91::2/64", "dev", "c0", "nodad"]);
        lan.ip(&["link", "set", "c0", "up"]);
        Some(lan)
    }

    /// Runs `ip` on the LAN host.
    pub(crate) fn ip(&self, args: &[&str]) {
        assert!(Command::new("ip").args(["-n", &self.name]).args(args).status().unwrap().success(), "ip {args:?}");
    }

    /// The LAN host's namespace.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Starts a proxy with `--allow-lan` on all addresses of this host.
    pub(crate) fn proxy(&self, args: &[&str]) -> Proxy {
        Proxy::listening_at(self.network.client_prefix(), "0.0.0.0:0", &[&["--allow-lan"], args].concat())
    }

    /// The response that the LAN host gets for `url` through the proxy, requested in the protocol `form`.
    pub(crate) fn request_from_lan(&self, proxy: &Proxy, form: ProxyProtocol, url: &str) -> Reply {
        let at = SocketAddr::new([192, 168, 91, 1].into(), proxy.address.port());
        let args = ["ip", "netns", "exec", self.name()].map(str::to_owned).to_vec();
        curl_through(args, at, form, url, &[])
    }

    /// The response that a program of this host gets for `url` through the proxy, requested in the protocol `form`.
    pub(crate) fn request_locally(&self, proxy: &Proxy, form: ProxyProtocol, url: &str) -> Reply {
        let at = SocketAddr::new([127, 0, 0, 1].into(), proxy.address.port());
        curl_through(self.network.client_prefix(), at, form, url, &[])
    }

    /// The response that a player with this User-Agent gets from the media port.
    pub(crate) fn request_as_player(&self, player: &str, proxy: &Proxy, url: &str) -> Reply {
        let at = SocketAddr::new([127, 0, 0, 1].into(), proxy.address.port());
        curl_through(self.network.client_prefix(), at, ProxyProtocol::Media, url, &["-A", player])
    }

    /// Starts a name server reachable over both links. Each name's answers are given in turn, the last one repeatedly; other names do not exist.
    pub(crate) fn name_server(&self, names: &[(&str, &[&str])]) {
        let socket = self.network.in_server_namespace(|| UdpSocket::bind("203.0.113.9:53"));
        let names: BTreeMap<String, Vec<Vec<IpAddr>>> = names
            .iter()
            .map(|(name, answers)| {
                let parse = |answer: &&str| answer.split(' ').map(|address| address.parse().unwrap()).collect();
                ((*name).to_owned(), answers.iter().map(parse).collect())
            })
            .collect();
        let given = Mutex::new(BTreeMap::<String, usize>::new());
        thread::spawn(move || {
            let mut query = [0; 512];
            while let Ok((len, from)) = socket.recv_from(&mut query) {
                let _ = socket.send_to(&dns_response(&query[..len], &names, &given), from);
            }
        });
    }
}

impl Drop for Lan {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// Runs curl with the command prefix `before` through a proxy at this address. For a refused CONNECT the status is that of the
/// proxy's response, for a refused SOCKS request it is the reply code.
fn curl_through(
    before: Vec<String>,
    proxy: SocketAddr,
    form: ProxyProtocol,
    url: &str,
    extra_args: &[&str],
) -> Reply {
    let (http, socks) = (format!("http://{proxy}"), proxy.to_string());
    let media = format!("{http}/{url}");
    let proxy_args: &[&str] = match form {
        ProxyProtocol::Media => &[&media],
        ProxyProtocol::Absolute => &["-x", &http, url],
        ProxyProtocol::Connect => &["-p", "-x", &http, url],
        ProxyProtocol::Socks => &["--socks5-hostname", &socks, url],
    };
    let mut all = before;
    all.extend(["curl", "-sS", "-g", "-i", "--noproxy", "", "--max-time", "30"].map(str::to_owned));
    all.extend(proxy_args.iter().chain(extra_args).map(|arg| (*arg).to_owned()));
    let output = Command::new(&all[0]).args(&all[1..]).env_remove("http_proxy").output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // The server's own response follows `200 Connection established`.
    let last = out.rfind("HTTP/1.1 ").map(|at| &out[at..]);
    let status = last.and_then(|last| last.get(9..12)).and_then(|status| status.parse().ok());
    let socks =
        err.rsplit_once('(').and_then(|(_, code)| code.trim_end().trim_end_matches([')', '.']).parse().ok());
    let body = out.rsplit_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
    let body = if body.is_empty() { err.to_string() } else { body.to_owned() };
    Reply { status: status.or(socks).unwrap_or(0), fields: Vec::new(), body: body.into_bytes() }
}

/// The response to a DNS query (RFC 1035 section 4.1), with a TTL of zero.
fn dns_response(
    query: &[u8],
    names: &BTreeMap<String, Vec<Vec<IpAddr>>>,
    given: &Mutex<BTreeMap<String, usize>>,
) -> Vec<u8> {
    let (mut at, mut labels) = (12, Vec::new());
    while let Some(len) = query.get(at).map(|len| usize::from(*len)).filter(|len| *len > 0) {
        labels.push(String::from_utf8_lossy(&query[at + 1..at + 1 + len]).to_lowercase());
        at += 1 + len;
    }
    let (name, end) = (labels.join("."), at + 5);
    let kind = if query[at + 2] == 1 { 4 } else { 16 };
    let answers = names.get(&name);
    let mut addresses = Vec::new();
    if let Some(answers) = answers {
        let mut given = given.lock().unwrap();
        let next_answer = given.entry(format!("{name} {kind}")).or_default();
        addresses = answers[(*next_answer).min(answers.len() - 1)].clone();
        *next_answer += 1;
    }
    let records: Vec<Vec<u8>> = addresses
        .iter()
        .map(|address| match address {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        })
        .filter(|bytes| bytes.len() == kind)
        .collect();
    let mut out = query[..2].to_vec();
    out.extend([0x81, if answers.is_some() { 0x80 } else { 0x83 }, 0, 1, 0, records.len() as u8, 0, 0, 0, 0]);
    out.extend_from_slice(&query[12..end]);
    for record in records {
        out.extend([0xc0, 12, 0, if kind == 4 { 1 } else { 28 }, 0, 1, 0, 0, 0, 0, 0, kind as u8]);
        out.extend(record);
    }
    out
}
