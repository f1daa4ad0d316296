//! Memory bounds: players that do not read slow the server down, and many players share the window memory.

use std::time::Duration;

use crate::proxy::{Player, Proxy};
use crate::server::{Resource, Server};

/// Peak resident memory of a process in bytes.
pub(crate) fn peak(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// How many bytes of one connection the kernels of both ends may buffer: their buffers grow to some megabytes.
pub(crate) const KERNEL_BUFFERS: u64 = 16_000_000;

#[test]
fn a_player_that_stops_reading_stops_the_server_and_can_continue() {
    let resource = Resource::new(60_000_000);
    let server = Server::honest(&resource);
    let proxy = Proxy::start(&["--window", "8MiB"]);
    let mut player = Player::start(&proxy, &server.url("/file"), 0);
    let mut got = player.read(100_000);
    let now = proxy.wait_for_status("full", |now| {
        let response = &now["sessions"][0]["responses"][0];
        let buffered =
            response["in_order_bytes"].as_u64().unwrap_or(0) + response["out_of_order_bytes"].as_u64().unwrap_or(0);
        buffered > 7 << 20
    });
    std::thread::sleep(Duration::from_millis(300));
    let response = &proxy.status()["sessions"][0]["responses"][0];
    let buffered = response["in_order_bytes"].as_u64().unwrap() + response["out_of_order_bytes"].as_u64().unwrap();
    assert!(buffered <= 8 << 20, "{response}");
    assert!(server.sent_bytes() < (8 << 20) + 2 * KERNEL_BUFFERS, "{} were sent: {now}", server.sent_bytes());
    got.extend(player.read(60_000_000 - 100_000));
    assert!(got == *resource.data);
}

#[test]
fn fifty_players_at_once_stay_within_the_memory_limit() {
    const BOUND: u64 = 128 << 20;
    let resource = Resource::new(30_000_000);
    let server = Server::honest(&resource);
    let proxy = Proxy::start(&["--memory", "128MiB", "--window", "32MiB"]);
    let url = server.url("/file");
    let mut players: Vec<Player> = (0..50).map(|n| Player::start(&proxy, &url, n * 1000)).collect();
    for (n, player) in players.iter_mut().enumerate() {
        assert!(player.read(1000) == resource.data[n * 1000..][..1000], "player {n}");
    }
    std::thread::sleep(Duration::from_millis(1500));
    let now = proxy.status();
    assert!(now["window_bytes"].as_u64().unwrap() <= BOUND, "{}", now["window_bytes"]);
    // The memory limit, and 64 MiB for the program itself and a buffer for each response.
    let most = BOUND + (64 << 20);
    assert!(peak(proxy.pid()) < most, "{} resident", peak(proxy.pid()));
    for n in [0, 25, 49] {
        let from = n * 1000 + 1000;
        assert!(players[n].read(30_000_000 - from) == resource.data[from..], "player {n}");
    }
    assert!(peak(proxy.pid()) < most, "{} resident", peak(proxy.pid()));
}

#[test]
fn a_player_without_memory_gets_503_with_retry_after() {
    let resource = Resource::new(30_000_000);
    let server = Server::honest(&resource);
    let proxy = Proxy::start(&["--memory", "4MiB"]);
    let url = server.url("/file");
    let _players: Vec<Player> = (0..2).map(|_| Player::start(&proxy, &url, 0)).collect();
    let got = proxy.get(&url, &[]);
    assert_eq!((got.status, got.field("retry-after")), (503, Some("5")), "{}", got.text());
}

#[test]
fn two_hundred_players_all_play() {
    let resource = Resource::new(6_000_000);
    let server = Server::honest(&resource);
    let proxy = Proxy::start(&[]);
    let url = server.url("/file");
    let mut players: Vec<Player> = (0..200).map(|n| Player::start(&proxy, &url, n * 5000)).collect();
    for (n, player) in players.iter_mut().enumerate() {
        let from = n * 5000;
        assert!(player.read(6_000_000 - from) == resource.data[from..], "player {n}");
    }
    assert!(peak(proxy.pid()) < 600_000_000, "{} resident", peak(proxy.pid()));
}
