//! Tests of the batch scheduler in a small simulation: links of fixed rates, servers with limits, and downloads that
//! use their whole share.

use alloc::vec;

use super::*;

const A: LinkId = LinkId(0);
const B: LinkId = LinkId(1);
const STEP: Duration = Duration::from_millis(100);

/// A download and the limits of its server.
#[derive(Clone, Debug)]
struct File {
    size: u64,
    /// Highest rate that its server gives over one link.
    server_limit: Bitrate,
    /// The only link that it can use; `None`: all.
    only_link: Option<LinkId>,
    received: u64,
    began: Option<Instant>,
    ended: Option<Instant>,
    shares: BTreeMap<LinkId, LinkShare>,
    /// In the last step, by link: the rate of this download, and whether it would have used less than its part of the
    /// link because its server is slow.
    last_loads: BTreeMap<LinkId, (Bitrate, bool)>,
}

fn file(size: u64) -> File {
    File {
        size,
        server_limit: Bitrate::from_mbps(10_000),
        only_link: None,
        received: 0,
        began: None,
        ended: None,
        shares: BTreeMap::new(),
        last_loads: BTreeMap::new(),
    }
}

struct World {
    batch: Batch,
    now: Instant,
    links: BTreeMap<LinkId, Bitrate>,
    files: Vec<File>,
    share_changes: usize,
    /// Bytes that each link carried.
    carried: BTreeMap<LinkId, u64>,
}

impl World {
    /// Each link: its id, its rate in Mbit/s, and whether it has a budget.
    fn new(parallel: u32, links: &[(LinkId, u64, bool)], files: Vec<File>) -> Self {
        let mut batch = Batch::new(Config { jobs: files.len() as u32, parallel });
        for (link, _, budgeted) in links {
            batch.handle(Instant::ZERO, Input::Link { link: *link, has_budget: *budgeted });
        }
        let links = links.iter().map(|(link, mbps, _)| (*link, Bitrate::from_mbps(*mbps))).collect();
        let mut world =
            Self { batch, now: Instant::ZERO, links, files, share_changes: 0, carried: BTreeMap::new() };
        world.batch.tick(Instant::ZERO);
        world.drain();
        world
    }

    fn drain(&mut self) {
        while let Some(output) = self.batch.poll() {
            match output {
                Output::Start { job } => self.files[job.0 as usize].began = Some(self.now),
                Output::Share { job, link, share } => {
                    self.share_changes += 1;
                    let file = &mut self.files[job.0 as usize];
                    assert!(file.began.is_some(), "a share for a download that has not started");
                    file.shares.insert(link, share);
                }
            }
        }
    }

    fn running(&self) -> usize {
        self.files.iter().filter(|file| file.began.is_some() && file.ended.is_none()).count()
    }

    /// Simulates a tenth of a second.
    fn step(&mut self) {
        self.now += STEP;
        for (link, capacity) in self.links.clone() {
            let able = |file: &File| {
                file.began.is_some()
                    && file.ended.is_none()
                    && file.only_link.is_none_or(|only| only == link)
                    && matches!(file.shares.get(&link), Some(LinkShare::Full | LinkShare::OneConn))
            };
            let users: Vec<usize> = (0..self.files.len()).filter(|n| able(&self.files[*n])).collect();
            let mut left = capacity;
            for (index, n) in users.iter().enumerate() {
                let fair = left / (users.len() - index) as u64;
                let rate = fair.min(self.files[*n].server_limit);
                left -= rate;
                let bytes = (rate * STEP).bytes();
                self.files[*n].received += bytes;
                *self.carried.entry(link).or_default() += bytes;
            }
            for (n, file) in self.files.iter_mut().enumerate() {
                let used = users.contains(&n);
                let fair = capacity / users.len().max(1) as u64;
                let rate = if used { fair.min(file.server_limit) } else { Bitrate::ZERO };
                file.last_loads.insert(link, (rate, used && left > capacity / 10));
            }
        }
        for n in 0..self.files.len() {
            let job = JobId(n as u32);
            let file = &mut self.files[n];
            if file.began.is_none() || file.ended.is_some() {
                continue;
            }
            if file.received >= file.size {
                file.ended = Some(self.now);
                self.batch.handle(self.now, Input::Ended { job });
            } else {
                let only = file.only_link;
                let load = |(link, (rate, slack)): (&LinkId, &(Bitrate, bool))| LinkLoad {
                    link: *link,
                    has_demand: only.is_none_or(|only| only == *link),
                    has_connections: !rate.is_zero(),
                    rate: *rate,
                    has_spare_capacity: *slack,
                    bytes: DataSize::ZERO,
                };
                let loads = file.last_loads.iter().map(load).collect();
                let left = Some(DataSize::from_bytes(file.size - file.received));
                self.batch.handle(self.now, Input::Progress { job, remaining: left, loads });
            }
            self.drain();
        }
    }

    fn run(&mut self) {
        for _ in 0..100_000 {
            if self.batch.is_over() {
                return;
            }
            self.step();
        }
        panic!("the batch never ends");
    }

    fn end_time(&self, n: usize) -> f64 {
        self.files[n].ended.expect("the download has ended").as_secs_f64()
    }
}

const MB: u64 = 1_000_000;

#[test]
fn at_most_the_allowed_number_of_downloads_run_and_they_start_in_order() {
    let mut world = World::new(3, &[(A, 8, false)], vec![file(MB); 10]);
    assert_eq!(world.running(), 3);
    let mut began = Vec::new();
    while !world.batch.is_over() {
        world.step();
        assert!(world.running() <= 3);
        for (n, file) in world.files.iter().enumerate() {
            if file.began.is_some() && !began.contains(&n) {
                began.push(n);
            }
        }
    }
    assert_eq!(began, (0..10).collect::<Vec<_>>());
}

#[test]
fn a_small_file_does_not_wait_for_the_large_ones_beside_it() {
    // Alone it takes 1.25 s over both links; with an equal share among four it would take 5 s.
    let files = vec![file(100 * MB), file(100 * MB), file(100 * MB), file(5 * MB / 2)];
    let mut world = World::new(4, &[(A, 8, false), (B, 8, false)], files);
    world.run();
    assert!(world.end_time(3) < 2.5, "{}", world.end_time(3));
    // The total time does not grow: 302.5 MB over 16 Mbit/s take 151 s.
    let last = (0..4).map(|n| world.end_time(n)).fold(0.0, f64::max);
    assert!(last < 151.25 * 1.03, "{last}");
    // Of equal downloads, the first is not delayed by the others.
    assert!(world.end_time(0) < 60.0, "{}", world.end_time(0));
}

#[test]
fn a_link_that_one_download_does_not_fill_gets_another() {
    let slow = |size| File { server_limit: Bitrate::from_mbps(2), ..file(size) };
    let mut world = World::new(4, &[(A, 8, false)], vec![slow(20 * MB); 4]);
    world.run();
    // Full use of the link takes 80 s; one download after the other would take 320 s.
    let last = (0..4).map(|n| world.end_time(n)).fold(0.0, f64::max);
    assert!(last < 110.0, "{last}");
}

#[test]
fn a_link_that_gains_nothing_from_a_second_download_is_left_to_the_first() {
    // Spare capacity is reported, but there is none: the limit applies to all downloads together.
    let mut world = World::new(2, &[(A, 8, false)], vec![file(40 * MB), file(40 * MB)]);
    let report_false_capacity = |world: &mut World| {
        for (index, file) in world.files.iter_mut().enumerate() {
            if file.ended.is_none() {
                let rate = if index == 0 { Bitrate::from_mbps(8) } else { Bitrate::ZERO };
                let load = LinkLoad {
                    link: A,
                    has_demand: true,
                    has_connections: true,
                    rate,
                    has_spare_capacity: true,
                    bytes: DataSize::ZERO,
                };
                let left = Some(DataSize::from_bytes(40 * MB - index as u64));
                let input = Input::Progress { job: JobId(index as u32), remaining: left, loads: vec![load] };
                world.batch.handle(world.now, input);
            }
        }
        world.drain();
    };
    let mut shared = 0;
    for _ in 0..600 {
        world.now += STEP;
        report_false_capacity(&mut world);
        let together = world.files.iter().all(|file| file.shares.get(&A) != Some(&LinkShare::Paused));
        shared += usize::from(together);
    }
    // Probes of two seconds at growing intervals.
    assert!((20..=120).contains(&shared), "{shared}");
}

#[test]
fn a_link_that_the_first_download_cannot_use_goes_to_the_next() {
    let one_link = File { only_link: Some(A), ..file(50 * MB) };
    let mut world = World::new(2, &[(A, 8, false), (B, 8, false)], vec![one_link, file(60 * MB)]);
    world.run();
    // 110 MB over 16 Mbit/s take 55 s; one after the other would take 50 s and 30 s.
    let last = world.end_time(0).max(world.end_time(1));
    assert!(last < 58.0, "{last}");
}

#[test]
fn a_link_with_a_budget_serves_one_download_at_a_time() {
    let mut world = World::new(3, &[(A, 8, false), (B, 8, true)], vec![file(10 * MB); 6]);
    while !world.batch.is_over() {
        world.step();
        let uses = |file: &&File| {
            file.ended.is_none() && matches!(file.shares.get(&B), Some(LinkShare::Full | LinkShare::OneConn))
        };
        assert!(world.files.iter().filter(uses).count() <= 1);
    }
    assert!(world.carried[&B] > 20 * MB, "the link is used: {}", world.carried[&B]);
}

#[test]
fn shares_change_rarely() {
    let mut world = World::new(4, &[(A, 8, false), (B, 3, false)], (1..=20).map(|n| file(n * MB)).collect());
    world.run();
    let seconds = world.now.as_secs_f64();
    // Sixteen for each of the 20 files.
    assert!((world.share_changes as f64) < 20.0 * 4.0 * 4.0, "{} in {seconds} s", world.share_changes);
}

#[test]
fn many_small_files_keep_the_links_busy() {
    let mut world = World::new(4, &[(A, 8, false), (B, 8, false)], vec![file(100_000); 100]);
    world.run();
    // 10 MB over 16 Mbit/s take 5 s; a step is 0.1 s.
    assert!(world.now.as_secs_f64() < 8.0, "{}", world.now.as_secs_f64());
}

#[test]
fn a_link_that_comes_up_later_is_shared_too() {
    let mut world = World::new(2, &[(A, 8, false)], vec![file(50 * MB), file(50 * MB)]);
    for _ in 0..20 {
        world.step();
    }
    world.links.insert(B, Bitrate::from_mbps(8));
    world.batch.handle(world.now, Input::Link { link: B, has_budget: false });
    world.drain();
    world.run();
    assert!(world.carried[&B] > 40 * MB, "{:?}", world.carried);
}
