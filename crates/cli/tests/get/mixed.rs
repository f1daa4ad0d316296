//! Checks that a downloaded file never mixes bytes of two files: random batches of files of equal length and equal ETag over two
//! links, with and without mirrors, some of which serve another file, refuse requests or break off.
//!
//! The seed determines a batch, and a failure prints it; `MARLINE_SOAK_SEED=N` runs that batch alone. The servers then behave
//! the same again; the timing of real sockets differs.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::network::Network;
use crate::server::{Request, Resource, Response, Server, Step};

/// What a path serves, and how it fails.
#[derive(Clone)]
struct Site {
    resource: Resource,
    failure: FailureKind,
}

/// How a path fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FailureKind {
    Honest,
    /// Answers every request with this status.
    Refuses(u16),
    /// Every n-th response breaks off.
    BreaksOff(usize),
    /// Answers 404 after n responses.
    Disappears(usize),
}

type Sites = Arc<Mutex<BTreeMap<String, (Site, usize)>>>;

struct Rng(u64);

impl Rng {
    fn below(&mut self, most: u64) -> u64 {
        // SplitMix64 (Steele, Lea, Flood 2014).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % most
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

#[derive(Default, Debug)]
struct Counts {
    batches: u64,
    files: u64,
    with_sources: u64,
    with_digest: u64,
    failed: u64,
}

fn serve(sites: &Sites, request: &Request) -> Response {
    let mut sites = sites.lock().unwrap();
    let Some((site, times)) = sites.get_mut(&request.path) else { return Response::status(404) };
    *times += 1;
    let answer = site.resource.respond(request);
    match site.failure {
        FailureKind::Honest => answer,
        FailureKind::Refuses(status) => Response::status(status),
        FailureKind::BreaksOff(every) if *times % every == 0 => answer.broken_after(5_000, [Step::Close]),
        FailureKind::Disappears(after) if *times > after => Response::status(404),
        FailureKind::BreaksOff(_) | FailureKind::Disappears(_) => answer,
    }
}

/// Runs one batch. Panics if a file differs from every file that it may be.
fn run_batch(seed: u64, network: &Network, server: &Server, sites: &Sites, counts: &mut Counts) {
    let mut chance = Rng(seed);
    let len = 20_000 + chance.below(900_000) as usize;
    let resource = |n: u64| Resource::other(len, seed.wrapping_mul(100) + n + 1).with("ETag", "\"same\"");
    let several = chance.one_in(2);
    let program = network.program().without_log();
    let path = |n: u64| format!("/{seed}/f{n}");
    let put = |n: u64, resource_id: u64, failure: FailureKind| {
        let site = Site { resource: resource(resource_id), failure };
        sites.lock().unwrap().insert(path(n), (site, 0));
        server.url(&path(n))
    };
    counts.batches += 1;
    if several {
        let files = 2 + chance.below(4);
        let urls: Vec<String> = (0..files)
            .map(|n| {
                let failure = if chance.one_in(4) { FailureKind::BreaksOff(3) } else { FailureKind::Honest };
                put(n, n, failure)
            })
            .collect();
        let parallel = (1 + chance.below(5)).to_string();
        let mut args = vec!["-q", "-d", "d", "-j", &parallel];
        args.extend(urls.iter().map(String::as_str));
        let ended = program.run(&args);
        assert_eq!(ended.code, Some(0), "seed {seed}: {}", ended.err);
        for n in 0..files {
            let file = program.file(&format!("d/f{n}")).unwrap_or_default();
            assert!(file == *resource(n).data, "seed {seed}: file {n} of {files} is another file or a mixture");
            counts.files += 1;
        }
    } else {
        let sources = 2 + chance.below(2);
        // Each source has the right file or another one of the same length.
        let resource_ids: Vec<u64> = (0..sources).map(|_| chance.below(2)).collect();
        let urls: Vec<String> = resource_ids
            .iter()
            .enumerate()
            .map(|(n, resource_id)| {
                let failure = match chance.below(6) {
                    0 => FailureKind::Refuses([404, 403, 503][chance.below(3) as usize]),
                    1 => FailureKind::BreaksOff(3),
                    2 => FailureKind::Disappears(1 + chance.below(4) as usize),
                    _ => FailureKind::Honest,
                };
                put(n as u64, *resource_id, failure)
            })
            .collect();
        let digest = chance.one_in(2).then(|| sha256(&resource(0).data));
        let checksum = digest.map(|digest| format!("sha256={digest}"));
        let mut args = vec!["-q", "-o", "out", "--retry", "1", "--max-time", "20s"];
        for url in &urls[1..] {
            args.extend(["--mirror", url]);
        }
        args.push(&urls[0]);
        if let Some(checksum) = &checksum {
            args.extend(["--checksum", checksum]);
            counts.with_digest += 1;
        }
        counts.with_sources += 1;
        let ended = program.run(&args);
        match (program.file("out"), &checksum) {
            (None, _) => {
                assert_ne!(ended.code, Some(0), "seed {seed}: no file, and no error");
                counts.failed += 1;
            }
            (Some(file), Some(_)) => {
                assert!(
                    file == *resource(0).data,
                    "seed {seed}: the file does not match the digest; {}",
                    ended.err
                );
                counts.files += 1;
            }
            (Some(file), None) => {
                let known = resource_ids.iter().any(|resource_id| file == *resource(*resource_id).data);
                assert!(known, "seed {seed}: the file is a mixture; {}", ended.err);
                counts.files += 1;
            }
        }
    }
    sites.lock().unwrap().clear();
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    data_encoding::HEXLOWER.encode(&sha2::Sha256::digest(bytes))
}

/// Runs the batches in `networks` networks in parallel, because most of the time is spent waiting for servers that fail.
fn run_batches(seeds: std::ops::Range<u64>, networks: u64) -> Option<Counts> {
    let all = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..networks)
            .map(|n| {
                scope.spawn({
                    let seeds = seeds.clone().filter(move |seed| seed % networks == n).collect::<Vec<_>>();
                    move || run_batches_in_sequence(seeds)
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect::<Option<Vec<_>>>()
    })?;
    let mut sum = Counts::default();
    for counts in all {
        sum.batches += counts.batches;
        sum.files += counts.files;
        sum.with_sources += counts.with_sources;
        sum.with_digest += counts.with_digest;
        sum.failed += counts.failed;
    }
    Some(sum)
}

fn run_batches_in_sequence(seeds: Vec<u64>) -> Option<Counts> {
    let network = Network::two_links()?;
    let sites: Sites = Arc::default();
    let server = {
        let sites = Arc::clone(&sites);
        network.serve(move |request| serve(&sites, request))
    };
    let mut counts = Counts::default();
    for seed in seeds {
        run_batch(seed, &network, &server, &sites, &mut counts);
    }
    Some(counts)
}

#[test]
fn random_batches_of_files_of_equal_length_are_never_mixed() {
    let seeds = match std::env::var("MARLINE_SOAK_SEED").ok().and_then(|text| text.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..24,
    };
    if let Some(counts) = run_batches(seeds, 8) {
        assert!(counts.files > 0, "{counts:?}");
    }
}

/// The long form, run by `make soak`.
#[test]
#[ignore = "a thousand batches take minutes: make soak"]
fn a_thousand_random_batches_are_never_mixed() {
    let begun = Instant::now();
    let first = 1_000_000;
    let Some(counts) = run_batches(first..first + 1000, 16) else { return };
    // `echo` prints the result past the test harness, which captures `println!`.
    let line = format!(
        "mixed files: 0 in {} batches ({} files; {} batches with further sources, {} of them with a digest; {} failed) in {} s",
        counts.batches,
        counts.files,
        counts.with_sources,
        counts.with_digest,
        counts.failed,
        begun.elapsed().as_secs()
    );
    assert!(Command::new("echo").arg(&line).status().unwrap().success());
    assert!(counts.files > 1000, "{counts:?}");
}
