//! Downloads through real proxies: tinyproxy for HTTP, microsocks for SOCKS5.
//!
//! Both run in the server's namespace of a [`Network`], so that each link leads to the proxy; the servers see the proxy's
//! address instead of the client's.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::network::Network;
use crate::nginx::{Nginx, identity};
use crate::program::{Program, link};
use crate::server::{Resource, Response, Server};

/// A running proxy; it is killed when this is dropped.
struct Proxy {
    child: Child,
    address: SocketAddr,
    _dir: tempfile::TempDir,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Proxy {
    /// Starts the program; `PORT` and `SETTINGS` in `arguments` and `settings` are replaced. None, with a printed reason, if it is not installed.
    fn start(
        network: &Network,
        program: &'static str,
        arguments: &'static str,
        settings: &'static str,
    ) -> Option<Self> {
        let found = Command::new(program).arg("-h").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if found.is_err() {
            eprintln!("skipped: {program} is not installed");
            return None;
        }
        // Another program could take the port before the proxy binds it; then the next port is tried.
        (0..5).find_map(|_| {
            let address = network.in_server_namespace(|| TcpListener::bind("203.0.113.9:0")?.local_addr());
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("settings");
            let substitute = |text: &str| {
                text.replace("PORT", &address.port().to_string()).replace("SETTINGS", &file.display().to_string())
            };
            std::fs::write(&file, substitute(settings)).unwrap();
            let args: Vec<String> = substitute(arguments).split_whitespace().map(str::to_owned).collect();
            let child = network.in_server_namespace(move || {
                Command::new(program).args(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
            });
            let mut proxy = Self { child, address, _dir: dir };
            let until = Instant::now() + Duration::from_secs(10);
            while Instant::now() < until {
                if proxy.child.try_wait().unwrap().is_some() {
                    return None;
                }
                if network.in_server_namespace(move || Ok(TcpStream::connect(address).is_ok())) {
                    return Some(proxy);
                }
                thread::sleep(Duration::from_millis(20));
            }
            None
        })
    }

    fn http(network: &Network) -> Option<Self> {
        let settings = "Port PORT\nListen 203.0.113.9\nTimeout 60\nBasicAuth me secret\nMaxClients 50\n";
        Self::start(network, "tinyproxy", "-d -c SETTINGS", settings)
    }

    fn socks(network: &Network) -> Option<Self> {
        Self::start(network, "microsocks", "-i 203.0.113.9 -p PORT -u me -P secret", "")
    }

    fn url_with_login(&self, scheme: &str) -> String {
        format!("{scheme}://me:secret@{}", self.address)
    }
}

/// A server whose address is not in the links' networks.
fn distant_server(network: &Network, all: &Resource) -> Server {
    network.server_ip("address add 198.51.100.7/32 dev lo\n");
    let all = all.clone();
    let listener = network.in_server_namespace(|| TcpListener::bind("198.51.100.7:0"));
    Server::on(listener, move |request| all.respond(request)).limit_rate(1_000_000)
}

fn is_direct(server: &Server) -> bool {
    server.requests().iter().any(|request| request.from.to_string().starts_with("10.77."))
}

#[test]
fn a_download_goes_through_a_proxy_over_both_links() {
    let Some(network) = Network::two_links() else { return };
    let resource = Resource::new(3_000_000);
    let server = distant_server(&network, &resource);
    let url = server.url("/file");
    let (Some(http), Some(socks)) = (Proxy::http(&network), Proxy::socks(&network)) else { return };
    for proxy in [http.url_with_login("http"), socks.url_with_login("socks5"), socks.url_with_login("socks5h")] {
        let program = network.program();
        let ended = program.run_with(&[], &[&url, "-o", "out", "--json", "-x", &proxy]);
        let report = ended.report();
        assert!(program.file("out").unwrap() == *resource.data, "{proxy}: {report}");
        for name in ["wifi0", "lte0"] {
            assert!(link(&report, name)["bytes"].as_u64() > Some(0), "{proxy}: {report}");
        }
        assert!(!is_direct(&server), "{proxy}");
        assert!(!format!("{report} {:?}", ended.notices()).contains("secret"));
    }
}

#[test]
fn https_is_tunnelled_and_the_servers_certificate_is_verified() {
    let Some(network) = Network::two_links() else { return };
    let Some(http) = Proxy::http(&network) else { return };
    let resource = Resource::new(500_000);
    network.server_ip("address add 198.51.100.7/32 dev lo\n");
    let (served, certificate) = (resource.clone(), identity("198.51.100.7", None));
    let address: SocketAddr = "198.51.100.7:8443".parse().unwrap();
    let nginx = network.in_server_namespace(move || Ok(Nginx::at(address, "", &served, Some(&certificate))));
    let Some(nginx) = nginx else { return };
    let (program, authority) = (network.program(), nginx.authority().display().to_string());
    let args = [
        "https://198.51.100.7:8443/file",
        "-o",
        "out",
        "--json",
        "--ca-file",
        &authority,
        "-x",
        &http.url_with_login("http"),
    ];
    program.run_with(&[], &args).report();
    assert!(program.file("out").unwrap() == *resource.data);
}

#[test]
fn proxy_variables_are_honored_and_no_proxy_accepts_networks() {
    let Some(network) = Network::two_links() else { return };
    let Some(socks) = Proxy::socks(&network) else { return };
    let resource = Resource::new(300_000);
    let server = distant_server(&network, &resource);
    let (url, proxy) = (server.url("/file"), socks.url_with_login("socks5h"));
    let get = |variables: &[(&str, &str)]| {
        let program = network.program();
        program.run_with(variables, &[&url, "-o", "out", "--json"]).report();
        assert!(program.file("out").unwrap() == *resource.data);
    };
    get(&[("all_proxy", &proxy)]);
    assert!(!is_direct(&server));
    get(&[("all_proxy", &proxy), ("no_proxy", "example.org,198.51.100.0/24")]);
    assert!(is_direct(&server));
}

#[test]
fn a_refusing_proxy_is_reported_without_its_password() {
    let Some(network) = Network::two_links() else { return };
    let (Some(http), Some(socks)) = (Proxy::http(&network), Proxy::socks(&network)) else { return };
    let server = distant_server(&network, &Resource::new(1000));
    let url = server.url("/file");
    let wrong = |proxy: &Proxy, scheme: &str| proxy.url_with_login(scheme).replace("secret", "wrongsecret");
    for (url, proxy, expected) in [
        (&url, wrong(&http, "http"), "the server answers 40"),
        (&url.replace("http", "https"), wrong(&http, "http"), "refuses a tunnel to 198.51.100.7"),
        (&url, wrong(&socks, "socks5h"), "no tunnel to 198.51.100.7"),
        (&url, "http://203.0.113.9:9".to_owned(), "203.0.113.9:9: connection refused"),
    ] {
        let program = network.program();
        let ended = program.run_with(&[], &[url, "-o", "out", "--retry", "1", "-x", &proxy]);
        assert_ne!(ended.code, Some(0));
        assert!(ended.err.contains(expected), "{}", ended.err);
        assert!(!ended.notices().concat().contains("secret"), "{:?}", ended.notices());
        assert!(program.file("out").is_none() && server.requests().is_empty());
    }
    let program = network.program();
    let line = program.refused(&[&url, "-x", "ftp://me:secret@203.0.113.9"], 64);
    assert!(line.contains("-x: a proxy of the kind `ftp` is not supported") && !line.contains("secret"), "{line}");
}

#[test]
fn a_proxy_that_accepts_and_never_responds_is_given_up_and_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || listener.incoming().collect::<Vec<_>>());
    thread::scope(|scope| {
        for (scheme, url) in [
            ("http", "https://host.example/f"),
            ("socks5h", "http://host.example/f"),
            ("socks5h", "https://host.example/f"),
        ] {
            scope.spawn(move || {
                let began = Instant::now();
                let proxy = format!("{scheme}://me:secret@{address}");
                let program = Program::new();
                let ended = program.run(&[url, "-x", &proxy, "-o", "out"]);
                let expected = format!("proxy {address} accepts connections and does not answer");
                assert_eq!(ended.code, Some(68), "{}", ended.err);
                assert!(ended.err.contains(&expected) && !ended.err.contains("secret"), "{}", ended.err);
                assert!(began.elapsed() < Duration::from_secs(40), "{scheme}: {:?}", began.elapsed());
            });
        }
    });
}

#[test]
fn an_unreachable_proxy_is_reported() {
    // Nothing listens at this address.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for url in ["http://host.example/f", "https://host.example/f"] {
        let proxy = format!("http://me:secret@{address}");
        let ended = Program::new().run(&[url, "-x", &proxy, "-o", "out", "--retry", "1"]);
        let expected = format!("proxy {address}: connection refused");
        assert!(ended.err.contains(&expected) && !ended.err.contains("secret"), "{}", ended.err);
    }
}

#[test]
fn a_redirect_does_not_reach_private_addresses_through_a_proxy() {
    let Some(network) = Network::two_links() else { return };
    let (Some(http), Some(socks)) = (Proxy::http(&network), Proxy::socks(&network)) else { return };
    let hidden = Server::on(network.in_server_namespace(|| TcpListener::bind("10.77.1.1:0")), |_| {
        Response::page(200, "hidden")
    });
    let target = hidden.url("/secret");
    network.server_ip("address add 198.51.100.7/32 dev lo\n");
    let server = Server::on(network.in_server_namespace(|| TcpListener::bind("198.51.100.7:0")), move |_| {
        Response::redirect(302, &target)
    });
    for proxy in [http.url_with_login("http"), socks.url_with_login("socks5"), socks.url_with_login("socks5h")] {
        let program = network.program();
        let ended = program.run_with(&[], &[&server.url("/file"), "-o", "out", "-x", &proxy]);
        assert_eq!(ended.code, Some(68), "{}", ended.err);
        assert!(ended.err.contains("10.77.1.1 is a private address"), "{}", ended.err);
        assert!(program.file("out").is_none() && hidden.requests().is_empty(), "{proxy}");
    }
}
