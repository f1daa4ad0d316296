//! The proxy over two links: media uses both, other connections use one working link.

use crate::network::Network;
use crate::proxy::{Proxy, Reply};
use crate::server::{Resource, Response, Step};

#[test]
fn media_comes_over_both_links_and_survives_the_failure_of_one() {
    let Some(network) = Network::two_links() else { return };
    let resource = Resource::new(12_000_000);
    let served = resource.clone();
    let server = network.serve(move |request| served.respond(request)).limit_rate(1_500_000);
    let proxy = Proxy::with_prefix(network.client_prefix(), &[]);
    let url = server.url("/film");
    let address = proxy.media_url(&url);
    let out = std::thread::scope(|scope| {
        let playing = scope.spawn(|| proxy.curl(&[&address]));
        server.wait_sent(4_000_000);
        network.cut("wifi0");
        playing.join().unwrap()
    });
    assert!(out.stdout == *resource.data, "{}", String::from_utf8_lossy(&out.stderr));
    let over = |wifi| server.requests().iter().any(|request| request.over_wifi() == wifi);
    assert!(over(true) && over(false));
    let links = proxy.status()["links"].as_array().unwrap().len();
    assert_eq!(links, 2);
}

#[test]
fn a_connection_takes_a_working_link_and_a_host_keeps_its_link() {
    let Some(network) = Network::two_links() else { return };
    let resource = Resource::new(10_000);
    let served = resource.clone();
    network.name_server(|_| true);
    let server = network.serve(move |request| served.respond(request));
    let proxy = Proxy::with_prefix(network.client_prefix(), &[]);
    let url = format!("http://file.test:{}/file", server.address.port());
    let (address, socks) = (format!("http://{}", proxy.address), proxy.address.to_string());
    let through = |args: &[&str]| -> Reply {
        let got = proxy.request(&url, args);
        assert!(got.body == *resource.data, "{args:?}: {}", got.text());
        got
    };
    for _ in 0..5 {
        through(&["-x", &address]);
        through(&["-p", "-x", &address, "--proxy-header", "X: y"]);
        through(&["--socks5-hostname", &socks]);
    }
    let first = server.requests()[0].over_wifi();
    assert!(server.requests().iter().all(|request| request.over_wifi() == first), "the host changed its link");
    // That link drops everything: the next connection takes the other one.
    network.cut(if first { "wifi0" } else { "lte0" });
    let before = server.requests().len();
    through(&["--socks5-hostname", &socks]);
    through(&["-x", &address]);
    assert!(server.requests()[before..].iter().all(|request| request.over_wifi() != first));
}

#[test]
fn a_proxy_without_links_answers_503_and_uses_the_first_link_that_appears() {
    let Some(network) = Network::two_links() else { return };
    let resource = Resource::new(100_000);
    let served = resource.clone();
    let server = network.serve(move |request| served.respond(request));
    network.client_ip("link del wifi0\nlink del lte0\n");
    let proxy = Proxy::with_prefix(network.client_prefix(), &[]);
    let url = server.url("/film");
    assert_eq!(proxy.get(&url, &[]).status, 503);
    network.add_link("lte0");
    proxy.wait_for_status("a link", |now| now["links"].as_array().is_some_and(|links| !links.is_empty()));
    assert!(proxy.get(&url, &[]).body == *resource.data);
}

#[test]
fn an_unresponsive_link_does_not_multiply_requests_of_a_player() {
    let Some(network) = Network::two_links() else { return };
    let body = b"small file\n";
    let small = |status: u16| {
        let answer = Response::status(status).with("ETag", "\"x\"").with("Content-Length", "11");
        answer.with_steps([Step::Raw(body.to_vec())])
    };
    let servers = [
        network.serve(move |_| small(200).with("Connection", "close")),
        network.serve(move |_| {
            let mut answer = small(200).http_1_0().without("Content-Length").without("ETag");
            answer.steps.push(Step::Close);
            answer
        }),
        network.serve(move |_| small(200)),
    ];
    let proxy = Proxy::with_prefix(network.client_prefix(), &[]);
    network.cut("lte0");
    std::thread::scope(|scope| {
        for server in &servers {
            let proxy = &proxy;
            scope.spawn(move || {
                let got = proxy.get(&server.url("/f"), &["--max-time", "20"]);
                let request_count = server.requests().len();
                assert!(got.status == 200 && got.body == body, "{}: {}", got.status, got.text());
                assert!(request_count <= 8, "{request_count} requests for {} bytes", body.len());
            });
        }
    });
}

#[test]
fn many_connections_of_a_program_to_a_host_use_both_links() {
    let Some(network) = Network::two_links() else { return };
    let resource = Resource::new(400_000);
    let served = resource.clone();
    let server = network.serve(move |request| served.respond(request)).limit_rate(20_000);
    let url = server.url("/file");
    for (spread, both) in [("auto", true), ("always", true), ("never", false)] {
        for form in ["--socks5-hostname", "-px"] {
            let proxy = Proxy::with_prefix(network.client_prefix(), &["--metered", "use", "--spread", spread]);
            let address = proxy.address.to_string();
            let before = server.requests().len();
            std::thread::scope(|scope| {
                let parts: Vec<_> = (0..8_usize)
                    .map(|n| {
                        let (from, to) = (n * 40_000, (n + 1) * 40_000);
                        let range = format!("{from}-{}", to - 1);
                        let (proxy, url, address) = (&proxy, &url, &address);
                        let transfer = scope.spawn(move || proxy.curl(&[form, address, "-r", &range, url]));
                        (from..to, transfer)
                    })
                    .collect();
                for (part, transfer) in parts {
                    assert!(transfer.join().unwrap().stdout == resource.data[part], "{spread} {form}");
                }
            });
            let requests = server.requests();
            let over_wifi = requests[before..].iter().filter(|request| request.over_wifi()).count();
            assert_eq!(requests.len() - before, 8);
            let expected = if both { 2..7 } else { 0..9 };
            assert!(expected.contains(&over_wifi), "{spread} {form}: {over_wifi} of 8 over wifi0");
            assert!(both || over_wifi % 8 == 0, "{spread} {form}: {over_wifi} of 8 over wifi0");
        }
    }
}
