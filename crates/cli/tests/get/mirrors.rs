//! Mirrors that a server or a Metalink file names, and digests that prove that they serve the same file (RFC 6249, RFC 5854, RFC 9530).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use crate::network::Network;
use crate::program::Program;
use crate::server::{Request, Resource, Response, Server, Step};

const SIZE: usize = 2_000_000;
const WRITE_INTERVAL: std::time::Duration = std::time::Duration::from_millis(10);

fn repr_digest(all: &Resource) -> String {
    format!("sha-256=:{}:", STANDARD.encode(Sha256::digest(&*all.data)))
}

fn secrets(request: &Request) -> bool {
    ["Cookie", "Authorization", "X-Token"].iter().any(|name| request.field(name).is_some())
}

#[test]
fn a_mirror_that_the_server_names_is_used_when_the_server_fails() {
    let Some(network) = Network::two_links() else { return };
    let (right, wrong) = (Resource::new(SIZE), Resource::other(SIZE, 7));
    for (proves, served) in [(true, &right), (false, &right), (true, &wrong)] {
        let (all, repr) = (right.clone(), if proves { repr_digest(&right) } else { String::new() });
        let first = network.serve(move |request| {
            if request.range.as_ref().is_none_or(|range| range.start > SIZE as u64 / 3) {
                return Response::status(404);
            }
            let port = request.field("Host").unwrap().rsplit(':').next().unwrap().to_owned();
            let copy = format!("<http://203.0.113.10:{port}/copy>; rel=duplicate; pri=1");
            let answer = all.clone().with("Link", &copy).with("Repr-Digest", &repr).respond(request);
            // Every response ends at half of the file.
            let mut answer = answer.slowly(20_000, WRITE_INTERVAL);
            let half = SIZE as u64 / 2;
            if let Some(at) =
                answer.steps.iter().position(|step| matches!(step, Step::Data(data) if data.start >= half))
            {
                answer.steps.truncate(at);
                answer.steps.push(Step::Close);
            }
            answer
        });
        let copy = served.clone();
        let second = network.serve_second(&first, move |request| copy.respond(request)).limit_rate(4_000_000);
        let program = network.program();
        let url = first.url("/file");
        let args = [&url, "-o", "out", "--json", "-b", "k=secret", "--user", "me:secret", "-H", "X-Token: 1"];
        let ended = program.run(&args);
        let requests = second.requests();
        assert!(
            !requests.is_empty() && requests.iter().all(|request| request.path == "/copy" && !secrets(request))
        );
        if served.data == right.data {
            assert!(program.file("out").unwrap() == *right.data, "{}", ended.err);
            // Without a digest, no byte of the first server is kept.
            assert_eq!(second.sent_bytes() < right.len(), proves, "{}", ended.err);
        } else {
            assert_ne!(ended.code, Some(0));
            assert!(program.file("out").is_none(), "a file that does not match the digest");
        }
        drop((first, second));
        network.server_ip("address del 203.0.113.10/32 dev lo\n");
    }
}

#[test]
fn a_digest_that_the_server_names_is_verified() {
    let right = Resource::new(100_000);
    let wrong = repr_digest(&Resource::other(100_000, 3));
    let server = Server::honest(&right.clone().with("Repr-Digest", &wrong));
    let program = Program::new();
    program.refused(&[&server.url("/file")], 65);
    // The next run does not resume from the rejected bytes.
    program.refused(&[&server.url("/file")], 65);
    // A stream has already passed its bytes on, and /dev/null keeps nothing, so the mismatch ends neither run.
    for target in ["-", "/dev/null"] {
        let ended = program.run(&[&server.url("/file"), "-o", target, "-q"]);
        assert_eq!(ended.code, Some(0), "{target}: {}", ended.err);
    }
    // The user's checksum has priority.
    let hex = crate::program::digest("sha256sum", &right.data);
    program.run(&[&server.url("/file"), "-o", "out", "--json", "--checksum", &format!("sha256={hex}")]).report();
}

#[test]
fn files_of_a_metalink_file_are_downloaded_and_verified() {
    let (one, two) = (Resource::new(300_000), Resource::other(200_000, 5));
    let resources = [one.clone(), two.clone(), Resource::other(300_000, 9)];
    let server = Server::start(move |request| match request.path.as_str() {
        "/one" => resources[0].respond(request),
        "/two" => resources[1].respond(request),
        "/bad" => resources[2].respond(request),
        _ => Response::status(404),
    });
    let program = Program::new().without_log();
    let hex = |all: &Resource| crate::program::digest("sha256sum", &all.data);
    let text = format!(
        "<?xml version=\"1.0\"?><metalink xmlns=\"urn:ietf:params:xml:ns:metalink\">\
         <file name=\"d/one.bin\"><size>300000</size><hash type=\"sha-256\">{}</hash>\
         <url priority=\"1\">{}</url><url priority=\"2\">{}</url><url priority=\"3\">{}</url></file>\
         <file name=\"two.bin\"><hash type=\"sha-256\">{}</hash><url>{}</url></file></metalink>",
        hex(&one),
        server.url("/bad"),
        server.url("/none"),
        server.url("/one"),
        hex(&two),
        server.url("/two"),
    );
    std::fs::write(program.path("list.meta4"), &text).unwrap();
    let ended = program.run(&["list.meta4", "-d", "out", "-H", "X-Token: 1", "-q"]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(program.file("out/d/one.bin").unwrap() == *one.data);
    assert!(program.file("out/two.bin").unwrap() == *two.data);
    assert!(!server.requests().iter().any(secrets));
    // The same list with a digest that no source matches.
    std::fs::write(program.path("wrong.meta4"), text.replace(&hex(&two), &hex(&one))).unwrap();
    let ended = program.run(&["-M", "wrong.meta4", "-d", "again", "-q"]);
    assert_eq!(ended.code, Some(65), "{}", ended.err);
    assert!(program.file("again/two.bin").is_none() && program.file("again/d/one.bin").unwrap() == *one.data);
    std::fs::write(program.path("evil.meta4"), text.replace("two.bin", "../two.bin")).unwrap();
    let ended = program.run(&["evil.meta4", "-d", "evil"]);
    assert_eq!(ended.code, Some(64), "{}", ended.err);
    assert!(
        ended.err.contains("evil.meta4: `../two.bin` is not a file path below the target directory"),
        "{}",
        ended.err
    );
    assert!(program.file("evil/d/one.bin").unwrap() == *one.data && program.file("two.bin").is_none());
    // A second run finds the files of the first one.
    let ended = program.run(&["list.meta4", "-d", "out", "-q"]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(program.file("out/d/one.bin.1").is_none() && program.file("out/two.bin.1").is_none());
}

#[test]
fn a_list_or_a_metalink_file_neither_creates_hidden_files_nor_replaces_files() {
    let resource = Resource::new(100_000);
    let served = resource.clone();
    let server = Server::start(move |request| served.respond(request));
    let program = Program::new().without_log();
    let url = server.url("/f");
    for (name, file) in
        [("bashrc", "mine"), ("ssh/authorized_keys", "mine"), (".bashrc", "mine"), ("a.bin", "mine")]
    {
        let path = program.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, file).unwrap();
    }
    let names = [".bashrc", ".ssh/authorized_keys", "-rf", "x.part.journal", "a.bin"];
    let file = |name: &str| format!("<file name=\"{name}\"><url>{url}</url></file>");
    let files: String = names.map(file).concat();
    let unusable = "<file name=\"f.ftp\"><url>ftp://h/f</url></file>";
    std::fs::write(program.path("evil.meta4"), format!("<metalink>{files}{unusable}</metalink>")).unwrap();
    let ended = program.run(&["evil.meta4"]);
    assert_eq!(ended.code, Some(64), "one file has no URL that can be used: {}", ended.err);
    assert!(ended.err.contains("`f.ftp` has no http or https URL"), "{}", ended.err);
    assert!(ended.err.contains("the name \".bashrc\" is changed to \"bashrc\""), "{}", ended.err);
    for name in ["bashrc", "ssh/authorized_keys", ".bashrc", "a.bin"] {
        assert_eq!(program.file(name).as_deref(), Some(&b"mine"[..]), "{name}");
    }
    for name in ["bashrc.1", "ssh/authorized_keys.1", "rf", "x.part.journal.download", "a.bin.1"] {
        assert!(program.file(name).unwrap() == *resource.data, "{name}");
    }
    assert!(!program.path(".ssh").exists());
    std::fs::write(program.path("list"), format!("{url}\n  out=a.bin\n")).unwrap();
    let ended = program.run(&["-i", "list", "-q"]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert_eq!(program.file("a.bin").as_deref(), Some(&b"mine"[..]));
    for out in [".bashrc", "-rf", "x.part", ".ssh/authorized_keys"] {
        std::fs::write(program.path("list"), format!("{url}\n  out={out}\n")).unwrap();
        let line = program.refused(&["-i", "list"], 64);
        assert!(line.contains("hidden files, names like options"), "{line}");
    }
}

#[test]
fn with_a_checksum_mirrors_are_tried_until_one_has_the_file() {
    let right = Resource::new(1_000_000);
    let files = [right.clone(), Resource::other(1_000_000, 3), Resource::other(1_000_000, 4)];
    let server = Server::start(move |request| match request.path.as_str() {
        "/good" => files[0].respond(request),
        "/bad1" => files[1].respond(request),
        "/bad2" => files[2].respond(request),
        "/half" => files[0].clone().with("ETag", "").full_response().broken_after(300_000, [Step::Close]),
        "/page" => Response::page(200, "<html>Log in</html>"),
        _ => Response::status(404),
    });
    let hex = crate::program::digest("sha256sum", &right.data);
    for paths in [
        &["/half", "/good"][..],
        &["/none", "/half", "/page", "/good"],
        &["/bad1", "/bad2", "/good"],
        &["/bad2", "/half", "/bad1", "/none", "/good"],
    ] {
        let urls: Vec<String> = paths.iter().map(|path| server.url(path)).collect();
        let mut args = vec![urls[0].as_str(), "-o", "out", "--json", "--checksum"];
        let checksum = format!("sha256={hex}");
        args.push(&checksum);
        urls[1..].iter().for_each(|url| args.extend(["--mirror", url]));
        let program = Program::new().without_log();
        program.run(&args).report();
        assert!(program.file("out").unwrap() == *right.data, "{paths:?}");
        let named = urls.iter().enumerate().map(|(n, url)| format!("<url priority=\"{}\">{url}</url>", n + 1));
        let text = format!(
            "<metalink xmlns=\"urn:ietf:params:xml:ns:metalink\"><file name=\"again\">\
             <hash type=\"sha-256\">{hex}</hash>{}</file></metalink>",
            named.collect::<String>()
        );
        std::fs::write(program.path("list.meta4"), text).unwrap();
        let ended = program.run(&["list.meta4", "-q"]);
        assert_eq!(ended.code, Some(0), "{paths:?}: {}", ended.err);
        assert!(program.file("again").unwrap() == *right.data, "{paths:?}");
    }
    // No source has the file.
    let (half, bad) = (server.url("/half"), server.url("/bad1"));
    Program::new().without_log().refused(&[&half, "--mirror", &bad, "--checksum", &format!("sha256={hex}")], 65);
}
