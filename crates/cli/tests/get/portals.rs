//! Two links of which one returns wrong data: captive portals, and CDN nodes without the file or with another version of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::network::Network;
use crate::program::{Ended, Program, link};
use crate::server::{Request, Resource, Response, Server, Step};

const SIZE: usize = 8_000_000;

/// A server that answers with `portal` over `wifi0`, and correctly over `lte0`.
fn portal(
    network: &Network,
    resource: &Resource,
    portal: impl Fn(&Request, &Resource) -> Response + Send + Sync + 'static,
) -> Server {
    let all = resource.clone();
    let server = network
        .serve(move |request| if request.over_wifi() { portal(request, &all) } else { all.respond(request) });
    server.limit_rate(10_000_000)
}

/// Downloads over both links; the file must be `resource`.
#[track_caller]
fn fetched(program: &Program, server: &Server, resource: &Resource) -> Ended {
    let ended = program.get(&server.url("/file"));
    let report = ended.report();
    assert!(program.file("out").unwrap() == *resource.data, "the file differs: {report}");
    ended
}

#[test]
fn both_links_carry_the_file() {
    let Some(network) = Network::two_links() else { return };
    let resource = Resource::new(SIZE);
    // The download takes two seconds, so that a link that is not scheduled for some time still carries its part.
    let server = portal(&network, &resource, |request, all| all.respond(request)).limit_rate(2_000_000);
    let report = fetched(&network.program(), &server, &resource).report();
    for name in ["wifi0", "lte0"] {
        assert!(link(&report, name)["bytes"].as_u64().unwrap() > 2_000_000, "{report}");
    }
    assert_eq!((&link(&report, "wifi0")["kind"], &link(&report, "lte0")["kind"]), (&"wifi".into(), &"lte".into()));
}

#[test]
fn no_byte_of_a_portal_gets_into_the_file() {
    type Portal = fn(&Request, &Resource) -> Response;
    let table: [(Portal, &str); 5] = [
        (|_, _| Response::page(200, "<html>log in"), "(a captive portal?)"),
        (
            |_, _| Response::page(511, "<html>log in"),
            "it answers 511 (network authentication required) (a captive portal?)",
        ),
        (|_, _| Response::page(404, "<html>no"), "its server answers 404 (not found)"),
        (
            |_, _| Response::page(200, "<html>log in").without("Content-Length").with("Connection", "close"),
            "(a captive portal?)",
        ),
        (|_, _| Response::page(200, "\x1f\u{8b}").with("Content-Encoding", "gzip"), "(a captive portal?)"),
    ];
    for (respond, expected) in table {
        let Some(network) = Network::two_links() else { return };
        let resource = Resource::new(SIZE);
        // Slow enough that the portal answers before the other link has fetched everything.
        let server = portal(&network, &resource, respond).limit_rate(2_000_000);
        let ended = fetched(&network.program(), &server, &resource);
        let report = ended.report();
        let lines: Vec<_> = ended.notices().into_iter().filter(|line| line.contains("not used")).collect();
        assert!(lines.iter().all(|line| line.starts_with("link wifi0: ")), "{expected}: {lines:?}");
        assert!(lines.iter().any(|line| line.contains(expected)), "{expected}: {lines:?}");
        assert!(link(&report, "lte0")["bytes"].as_u64().unwrap() >= resource.len(), "{report}");
    }
}

/// Two CDN nodes have different versions, and neither is more credible: the first response decides, and no byte of the other
/// version is added.
#[test]
fn two_versions_of_a_file_are_never_mixed() {
    let same_length = Resource::other(SIZE, 2);
    let shorter = Resource::other(SIZE / 2, 1);
    let table: [(&Resource, bool); 3] = [(&same_length, true), (&shorter, true), (&same_length, false)];
    for (other, ranges) in table {
        let Some(network) = Network::two_links() else { return };
        let (resource, portal_resource) = (Resource::new(SIZE), other.clone());
        let server = portal(&network, &resource, move |request, _| {
            if ranges { portal_resource.respond(request) } else { portal_resource.full_response() }
        });
        let program = network.program();
        let ended = program.get(&server.url("/file"));
        let report = ended.report();
        let file = program.file("out").unwrap();
        let accepted_link = if file == *resource.data { "lte0" } else { "wifi0" };
        assert!(file == *resource.data || file == *other.data, "mixed: {report}");
        assert!(link(&report, accepted_link)["bytes"].as_u64().unwrap() >= file.len() as u64, "{report}");
        let lines: Vec<_> = ended.notices().into_iter().filter(|line| line.contains("not used")).collect();
        let rejected_prefix = if accepted_link == "lte0" { "link wifi0: " } else { "link lte0: " };
        assert!(!lines.is_empty() && lines.iter().all(|line| line.starts_with(rejected_prefix)), "{lines:?}");
    }
}

#[test]
fn a_portal_that_redirects_to_its_login_is_banned() {
    let Some(network) = Network::two_links() else { return };
    let resource = Resource::new(SIZE);
    let server = portal(&network, &resource, |request, _| match request.path.as_str() {
        "/file" => Response::redirect(302, "/login?from=file"),
        _ => Response::page(200, "<html>log in"),
    });
    let ended = fetched(&network.program(), &server, &resource);
    ended.assert_notice(
        "link wifi0: not used for now, it sends an HTML page instead of the file (a captive portal?)",
    );
    assert!(link(&ended.report(), "wifi0")["state"].as_str().unwrap().starts_with("banned: "), "{:?}", ended);
}

#[test]
fn a_link_is_used_again_after_the_login_at_its_portal() {
    let Some(network) = Network::two_links() else { return };
    let resource = Resource::new(2 * SIZE);
    let open = Arc::new(AtomicBool::new(false));
    let is_open = open.clone();
    let server = portal(&network, &resource, move |request, all| {
        if is_open.load(Ordering::Relaxed) { all.respond(request) } else { Response::page(511, "<html>log in") }
    });
    let program = network.program();
    // Slow enough that the link's ban of 5 s ends long before the download.
    let running = program.start(&[&server.url("/file"), "-o", "out", "--json", "--limit-rate", "lte0=8Mbit/s"]);
    thread::sleep(Duration::from_millis(1000));
    open.store(true, Ordering::Relaxed);
    let ended = running.wait();
    let report = ended.report();
    assert!(program.file("out").unwrap() == *resource.data);
    ended.assert_notice("link wifi0: carries data again");
    assert!(link(&report, "wifi0")["bytes"].as_u64().unwrap() > 200_000, "{report}");
}

#[test]
fn a_portal_on_every_link_yields_no_file() {
    let Some(network) = Network::two_links() else { return };
    let server = network.serve(|_| Response::page(511, "<html>log in"));
    let line = network.program().refused(&[&server.url("/file")], 75);
    assert!(line.contains("the server answers 511"), "{line}");
}

#[test]
fn without_validators_both_links_are_used_only_with_a_checksum() {
    let Some(network) = Network::two_links() else { return };
    let resource = Resource::new(SIZE).with("ETag", "");
    let server = portal(&network, &resource, |request, all| all.respond(request));
    let report = fetched(&network.program(), &server, &resource).report();
    let used = |report: &serde_json::Value| {
        ["wifi0", "lte0"].iter().filter(|name| link(report, name)["bytes"].as_u64() > Some(1_000_000)).count()
    };
    assert_eq!(used(&report), 1, "{report}");
    let program = network.program();
    let sum = format!("sha256={}", crate::program::digest("sha256sum", &resource.data));
    let report = program.run(&[&server.url("/file"), "-o", "out", "--json", "--checksum", &sum]).report();
    assert_eq!(used(&report), 2, "{report}");
    assert!(program.file("out").unwrap() == *resource.data);
}

#[test]
fn a_changed_file_is_accepted_when_all_links_confirm_it() {
    let Some(network) = Network::two_links() else { return };
    let (old, new) = (Resource::other(SIZE, 1), Resource::other(SIZE, 2));
    let (before, after) = (old, new.clone());
    let server = network.serve(move |request| match request.nth {
        // A running response continues with the old file.
        0 => before.respond(request).broken_after(1_000_000, [Step::Close]),
        1 | 2 => before.respond(request),
        _ => after.respond(request),
    });
    let server = server.limit_rate(6_000_000);
    let ended = fetched(&network.program(), &server, &new);
    ended.assert_notice("the file has changed on the server: starting again");
}

#[test]
fn each_link_may_use_its_own_cdn_node_if_the_nodes_agree() {
    let Some(network) = Network::two_links() else { return };
    let resource = Resource::new(SIZE);
    // The bytes are equal; the test is about whether the ETags of the CDN nodes are.
    for (tags, both) in [(["\"v1\"", "\"v1\""], true), (["\"v1\"", "\"edge-b\""], false)] {
        let edges = tags.map(|tag| {
            let all = resource.clone().with("ETag", tag);
            network.serve(move |request| all.respond(request)).limit_rate(6_000_000)
        });
        let urls = [edges[0].url("/edge"), edges[1].url("/edge")];
        let server =
            network.serve(move |request| Response::redirect(302, &urls[usize::from(!request.over_wifi())]));
        let program = network.program();
        let ended = fetched(&program, &server, &resource);
        let report = ended.report();
        let request_count = |edge: &Server| edge.requests().len();
        if both {
            ended.assert_no_notices();
            assert!(request_count(&edges[0]) > 0 && request_count(&edges[1]) > 0, "{report}");
        } else {
            // Both links use one CDN node.
            for name in ["wifi0", "lte0"] {
                assert!(link(&report, name)["bytes"].as_u64().unwrap() > 500_000, "{}", ended.err);
            }
        }
    }
}

#[test]
fn each_link_may_use_its_own_address_if_the_cdn_nodes_agree() {
    // The bytes are equal; the test is about whether the ETags of the CDN nodes are.
    for (tags, both) in [(["\"v1\"", "\"v1\""], true), (["\"v1\"", "\"edge-b\""], false)] {
        let Some(network) = Network::two_links() else { return };
        let resource = Resource::new(SIZE);
        let [first_version, second_version] = tags.map(|tag| resource.clone().with("ETag", tag));
        let first = network.serve(move |request| first_version.respond(request)).limit_rate(6_000_000);
        let second =
            network.serve_second(&first, move |request| second_version.respond(request)).limit_rate(6_000_000);
        network.cdn_name_server();
        let program = network.program();
        let ended = program.get(&format!("http://file.test:{}/file", first.address.port()));
        let report = ended.report();
        assert!(program.file("out").unwrap() == *resource.data, "the file differs: {report}");
        ended.assert_no_notices();
        for name in ["wifi0", "lte0"] {
            assert!(link(&report, name)["bytes"].as_u64().unwrap() > 500_000, "{report}");
        }
        let requests = [&first, &second].map(Server::requests);
        let [by_wifi, by_lte] =
            requests.each_ref().map(|request| request.iter().filter(|received| received.over_wifi()).count());
        if both {
            let by_others = requests[0].len() - by_wifi + by_lte;
            // The first response, over the link that connects first, may carry the whole share of that link.
            let both = by_wifi > 0 && !requests[1].is_empty() && requests[0].len() + requests[1].len() > 2;
            assert!(by_others == 0 && both, "{report}");
        } else {
            // The first response decides; the other CDN node gets hardly more than one request.
            let strayed = by_lte.max(requests[0].len() - by_wifi);
            assert!(strayed > 1, "no link used the other CDN node: {report}");
            assert!(requests.iter().map(Vec::len).min() <= Some(4), "{report}");
        }
    }
}

/// A link whose portal answers for every address is banned, although its requests went to another address than those of the other link.
#[test]
fn a_portal_that_answers_for_every_address_is_banned() {
    let Some(network) = Network::two_links() else { return };
    let (resource, page) = (Resource::new(SIZE), Resource::other(SIZE, 2));
    let (all, portal_page) = (resource.clone(), page.clone());
    let first =
        network.serve(
            move |request| if request.over_wifi() { all.respond(request) } else { portal_page.respond(request) },
        );
    let first = first.limit_rate(6_000_000);
    // Its first response comes late, so the version of the other link is accepted.
    let second = network.serve_second(&first, move |request| {
        thread::sleep(Duration::from_millis(300));
        page.respond(request)
    });
    network.cdn_name_server();
    let program = network.program();
    let ended = program.get(&format!("http://file.test:{}/file", first.address.port()));
    let report = ended.report();
    assert!(program.file("out").unwrap() == *resource.data, "mixed: {report}");
    ended.assert_notice("link lte0: not used for now, its server has another version of the file");
    assert!(second.requests().len() <= 4, "{report}");
}
