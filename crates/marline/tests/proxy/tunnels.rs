//! Everything that is not played: forwarded requests, CONNECT, SOCKS5.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::nginx::{Nginx, identity};
use crate::proxy::Proxy;
use crate::server::{Answer, Resource, Server, Step};

const SIZE: usize = 5_000_000;

#[test]
fn a_file_passes_through_each_kind_of_proxy_as_it_is() {
    let resource = Resource::new(SIZE);
    let Some(nginx) = Nginx::start("", &resource, None) else { return };
    let proxy = Proxy::start(&[]);
    let (address, socks) = (format!("http://{}", proxy.address), proxy.address.to_string());
    let url = format!("http://localhost:{}/file", nginx.address.port());
    for words in
        [&["-x", &address][..], &["-p", "-x", &address], &["--socks5", &socks], &["--socks5-hostname", &socks]]
    {
        let mut all = vec!["--noproxy", "", url.as_str()];
        all.extend(words);
        let output = proxy.curl(&all);
        assert!(output.stdout == *resource.data, "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn tls_passes_through_untouched() {
    let resource = Resource::new(SIZE);
    let identity = identity("localhost", None);
    let Some(nginx) = Nginx::start("http2 on;", &resource, Some(&identity)) else { return };
    let proxy = Proxy::start(&[]);
    let authority = nginx.authority();
    let url = format!("https://localhost:{}/file", nginx.address.port());
    let (address, socks) = (format!("http://{}", proxy.address), proxy.address.to_string());
    for words in [["-x", &address], ["--socks5-hostname", &socks]] {
        let mut all = vec!["--noproxy", "", "--cacert", authority.to_str().unwrap(), url.as_str()];
        all.extend(words);
        assert!(proxy.curl(&all).stdout == *resource.data, "{words:?}");
    }
}

#[test]
fn a_forwarded_request_arrives_without_what_was_for_the_proxy() {
    let server = Server::start(|asked| {
        let said = |name: &str| asked.field(name).unwrap_or("none").to_owned();
        let text = ["host", "proxy-connection", "proxy-authorization", "x-mine", "via"].map(said).join(" ");
        Answer::status(201).with("Content-Length", &text.len().to_string()).then([Step::Raw(text.into_bytes())])
    });
    let proxy = Proxy::start(&[]);
    let address = format!("http://me:secret@{}", proxy.address);
    let words = ["-x", &address, "--noproxy", "", "-H", "X-Mine: yes"];
    let got = proxy.ask(&server.url("/x?y=z"), &words);
    assert_eq!((got.status, got.text()), (201, format!("{} none none yes none", server.address)));
    assert_eq!(server.asked()[0].path, "/x?y=z");
}

#[test]
fn a_host_that_refuses_is_told_in_the_clients_own_way() {
    let proxy = Proxy::start(&[]);
    let (address, socks) = (format!("http://{}", proxy.address), proxy.address.to_string());
    let got = proxy.ask("http://127.0.0.1:9/", &["-x", &address, "--noproxy", ""]);
    assert!(got.status == 502 && got.text().contains("connection refused"), "{}", got.text());
    // curl: 56 for a refused CONNECT, 97 for SOCKS.
    let connect = proxy.curl(&["-p", "-x", &address, "--noproxy", "", "http://127.0.0.1:9/"]);
    assert!(String::from_utf8_lossy(&connect.stderr).contains("502"), "{connect:?}");
    let refused = proxy.curl(&["--socks5-hostname", &socks, "--noproxy", "", "http://127.0.0.1:9/"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("(5)"), "{refused:?}");
    let https =
        proxy.ask("http://127.0.0.1:9/", &["-x", &address, "--noproxy", "", "--request-target", "https://h/"]);
    assert_eq!(https.status, 400);
}

#[test]
fn bytes_behind_a_connect_request_are_not_lost() {
    let server = Server::honest(&Resource::new(100));
    let proxy = Proxy::start(&[]);
    let mut client = TcpStream::connect(proxy.address).unwrap();
    let request = format!(
        "CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\nGET /early HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        server.address
    );
    client.write_all(request.as_bytes()).unwrap();
    let mut said = [0; 200];
    let mut all = Vec::new();
    while !all.windows(12).any(|said| said == b"HTTP/1.1 200")
        || all.windows(8).filter(|s| *s == b"HTTP/1.1").count() < 2
    {
        let len = client.read(&mut said).unwrap();
        assert!(len > 0, "{}", String::from_utf8_lossy(&all));
        all.extend_from_slice(&said[..len]);
    }
    assert_eq!(server.asked()[0].path, "/early");
}
