//! Servers that refuse for a while after they have delivered, or refuse requests for ranges (rules of
//! `super::super::refusals` and `silence`).

use super::servers::{SIZE, TAG, honest, one, serve, status};
use super::*;

/// A server delivers half of the file, and then refuses everything until this time. Tells when the download ended.
fn refuses_after_half(code: u16, until: Duration) -> (Desk, Instant) {
    let mut desk = one();
    let mut half = None;
    serve(&mut desk, |desk, _, req| {
        if desk.fetch.status().done.bytes() < SIZE / 2 {
            return Some(honest(desk, req, TAG));
        }
        let since = *half.get_or_insert(desk.now);
        Some(if desk.now < since + until { status(code) } else { honest(desk, req, TAG) })
    });
    let end = desk.now;
    (desk, end)
}

#[test]
fn a_server_that_has_delivered_may_refuse_for_a_while() {
    for code in [403, 404] {
        for seconds in [6, 14, 25] {
            let (desk, end) = refuses_after_half(code, Duration::from_secs(seconds));
            assert!(desk.done, "{code} for {seconds} s: {:?}", desk.failed);
            assert!(end < Instant::ZERO + Duration::from_secs(40), "{end:?}");
        }
        let (desk, end) = refuses_after_half(code, Duration::from_secs(3600));
        assert_eq!(desk.failed, Some(Failure::Status { status: code }));
        assert!(end < Instant::ZERO + Duration::from_secs(45), "{end:?}");
    }
}

#[test]
fn a_refusal_of_the_resource_is_checked_by_one_request_without_a_range() {
    for code in [402, 404, 410, 421, 423, 428, 451] {
        for open_first in [false, true] {
            let config = Config { open_first, ..Config::default() };
            let mut single = Desk::new(config.clone());
            single.link(A, LinkProfile::new("a", LinkKind::Wifi));
            for mut desk in [single, Desk::two(config)] {
                let requests = serve(&mut desk, |desk, _, req| {
                    Some(if desk.reqs[&req].ask == Ask::Whole { honest(desk, req, TAG) } else { status(code) })
                });
                assert!(desk.done, "{code}: {:?} {:?}", desk.failed, desk.notices);
                assert!(requests <= 4, "{code}: {requests}");
            }
        }
    }
    for open_first in [false, true] {
        let mut desk = Desk::two(Config { open_first, ..Config::default() });
        let mut whole = 0;
        let requests = serve(&mut desk, |desk, _, req| {
            whole += u32::from(desk.reqs[&req].ask == Ask::Whole);
            Some(status(404))
        });
        assert_eq!(desk.failed, Some(Failure::Status { status: 404 }));
        assert!(whole == 1 && requests <= 3, "{whole} of {requests}");
    }
}

#[test]
fn a_body_that_cannot_be_read_ends_the_download_soon() {
    for kind in [TroubleKind::Protocol, TroubleKind::Reset] {
        let mut desk = Desk::new(Config::default());
        desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
        let begun = desk.now;
        for _ in 0..50 {
            if desk.failed.is_some() {
                break;
            }
            if !desk.on(A).is_empty() {
                let conn = desk.connect(A, 5);
                if let Some((req, _)) = desk.asked(A).first() {
                    desk.whole(*req, None, None);
                }
                desk.close(conn, kind);
            }
            desk.pass(Duration::from_millis(500));
        }
        assert!(matches!(desk.failed, Some(Failure::Retries { .. })), "{:?}", desk.failed);
        assert!(desk.now - begun < Duration::from_secs(20));
    }
}
