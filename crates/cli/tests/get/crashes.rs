//! Runs that are stopped by a signal or killed, and the next run, which resumes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::network::Network;
use crate::program::Program;
use crate::server::{Resource, Server};

#[test]
fn a_signal_stops_cleanly_and_the_next_run_resumes() {
    for signal in [Signal::INT, Signal::TERM] {
        let resource = Resource::new(12_000_000);
        let server = Server::honest(&resource).limit_rate(6_000_000);
        let program = Program::new();
        let url = server.url("/file");
        let running = program.start(&[&url, "-o", "out", "--json"]);
        server.wait_sent(5_000_000);
        running.signal(signal);
        let ended = running.wait();
        assert_eq!(ended.code, Some(130), "{}", ended.err);
        assert!(ended.err.ends_with("marline: stopped; run the same command again to resume\n"), "{}", ended.err);
        assert!(program.file("out").is_none());
        let printed = String::from_utf8_lossy(&ended.out);
        assert!(printed.contains(r#""kind":"interrupted","exit_code":130"#), "{printed}");
        let server = server.limit_rate(0);
        let report = program.get(&url).report();
        assert!(report["resumed_bytes"].as_u64().unwrap() >= 4_000_000, "{report}");
        assert!(program.file("out").unwrap() == *resource.data);
        assert_eq!(program.files(), ["out"]);
        // Only the bytes in flight at the stop were sent twice.
        assert!(server.resent_bytes() < 1 << 20, "{}", server.resent_bytes());
    }
}

/// Total number of kills.
const KILLS: usize = 50;
/// How many bytes each kill may cause to be sent again.
const MAX_RESENT: u64 = 4 << 20;

#[test]
fn fifty_kills_at_random_times_corrupt_nothing_and_repeat_few_bytes() {
    let resource = Resource::new(40_000_000);
    let (mut moments, mut killed) = (KillTimes(0x5eed), 0);
    while killed < KILLS {
        // Each completed file is followed by a new download in an empty directory.
        let program = Program::new();
        let server = Server::honest(&resource).limit_rate(20_000_000);
        let url = server.url("/file");
        let mut again = 0;
        let mut no_more_again = |killed: usize| {
            let cost = server.resent_bytes() - again;
            assert!(cost <= MAX_RESENT, "kill {killed} cost {cost} bytes");
            again += cost;
        };
        while killed < KILLS && program.file("out").is_none() {
            let running = program.start(&[&url, "-o", "out", "-q"]);
            thread::sleep(moments.next());
            running.kill();
            killed += 1;
            no_more_again(killed);
        }
        if program.file("out").is_none() {
            program.get(&url).report();
            no_more_again(killed);
        }
        assert!(program.file("out").unwrap() == *resource.data, "the file differs");
    }
}

/// Pseudo-random times between 10 and 600 ms after the start, equal in each run of the test.
struct KillTimes(u64);

impl KillTimes {
    fn next(&mut self) -> Duration {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Duration::from_millis(10 + (self.0 >> 33) % 590)
    }
}

#[test]
fn a_date_that_changes_under_the_same_etag_between_runs_is_reported_once() {
    let resource = Resource::new(8_000_000).with("Date", "Thu, 26 Nov 2026 10:00:00 GMT");
    let network = Network::two_links();
    for network in [None, network.as_ref()] {
        let dates = ["Sat, 01 Aug 2020 10:00:00 GMT", "Sun, 02 Aug 2020 10:00:00 GMT"];
        let run = Arc::new(AtomicUsize::new(0));
        let (all, now) = (resource.clone(), Arc::clone(&run));
        let handler = move |request: &crate::server::Request| {
            all.clone().with("Last-Modified", dates[now.load(Ordering::Relaxed).min(1)]).respond(request)
        };
        let server = match network {
            Some(network) => network.serve(handler),
            None => Server::start(handler),
        };
        let server = server.limit_rate(2_000_000);
        let program = network.map_or_else(Program::new, Network::program);
        let expected = "under the same ETag: the ETag decides";
        for nth in 0..3 {
            run.store(nth, Ordering::Relaxed);
            let ended = program.run(&[&server.url("/file"), "-o", "out", "--json", "--max-time", "1s"]);
            let notice_count = ended.notices().iter().filter(|line| line.contains(expected)).count();
            assert_eq!(notice_count, usize::from(nth == 1), "run {nth}: {}", ended.err);
        }
        let server = server.limit_rate(0);
        program.get(&server.url("/file")).report();
        assert!(program.file("out").unwrap() == *resource.data);
    }
}
