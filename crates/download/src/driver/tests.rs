//! Tests of the driver with a server that accepts connections and never responds.

use marline_core::fetch::{Config, ConnError, ConnErrorKind, Fetch, RequestRange, Validator};
use marline_net::links::LinkSelection;

use super::*;
use crate::Progress;
use crate::store::Store;

struct NullObserver;

impl DownloadObserver for NullObserver {
    fn on_progress(&mut self, _: &Progress) {}
    fn on_message(&mut self, _: &str) {}
}

/// Runs a test, within a runtime, with a driver and a server that never responds.
fn with_driver(test: impl FnOnce(&mut DownloadDriver<'_, Fetch>, &mut Context<'_>)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/file", listener.local_addr().unwrap()).parse().unwrap();
        let store = Store::open(std::path::Path::new("/dev/null"), &[]).unwrap().store;
        let mut observer = NullObserver;
        let mut driver = DownloadDriver::new(
            Logged::new(Config::default(), None),
            BodySink::new(store),
            ConnTable::new(marline_net::http::TlsContext::default()),
            UrlTable::new(&url, &[], None),
            Uplinks::local(LinkSelection::Named(Vec::new())).unwrap().0,
            &mut observer,
            std::time::Instant::now(),
        );
        test(&mut driver, &mut Context::from_waker(std::task::Waker::noop()));
    });
}

#[test]
fn sockets_are_polled_again_after_an_output() {
    with_driver(|driver, cx| {
        assert!(!driver.poll_once(cx), "no input, no work");
        driver.link_up(LinkId(0));
        assert_eq!(driver.transfer.conns.ids().len(), 1);
        driver.poll_once(cx);
        // The backoff ends: the output comes from a tick, after the sockets were polled.
        let conn = driver.transfer.conns.ids()[0];
        driver.transfer.close_conn(conn);
        let error = ConnError { kind: ConnErrorKind::Refused, text: String::new() };
        driver.feed_machine(Input::Closed { conn, error });
        assert!(driver.transfer.conns.ids().is_empty(), "the machine backs off first");
        while driver.logged.deadline().is_some_and(|at| at > driver.now()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(driver.poll_once(cx), "the new connection needs a poll");
        assert_eq!(driver.transfer.conns.ids().len(), 1);
    });
}

#[test]
fn all_connections_are_served_under_a_rate_limit() {
    let ids: Vec<ConnId> = [1, 4, 7].map(ConnId).into();
    // The connection served last, and the order in which the next round serves all of them.
    for (served, want) in [(0, [1, 4, 7]), (1, [4, 7, 1]), (5, [7, 1, 4]), (7, [1, 4, 7]), (9, [1, 4, 7])] {
        assert_eq!(rotated_after(ConnId(served), ids.clone()), want.map(ConnId), "{served}");
    }
    assert_eq!(rotated_after(ConnId(3), Vec::new()), []);
}

#[test]
fn verifying_a_checksum_yields_to_other_tasks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    with_driver(|driver, cx| {
        let mut store = Store::open(&path, &[]).unwrap().store;
        store.expect_checksum(format!("sha256={}", "0".repeat(64)).parse().unwrap());
        let validator = Validator::Etag("\"1\"".to_owned());
        store.on_identified(Some(DataSize::from_mib(1)), Some(&validator)).unwrap();
        store.write(0, &[1; 1 << 20]).unwrap();
        driver.transfer.body = BodySink::new(store);
        let mut polls = 0;
        let mut verification = std::pin::pin!(crate::download::verify_checksum(driver));
        while verification.as_mut().poll(cx).is_pending() {
            polls += 1;
        }
        // Between any two of these polls, a signal or the time limit would be noticed.
        assert!(polls > 2, "{polls}");
    });
    assert!(!path.exists());
}

#[test]
fn an_output_that_cannot_be_executed_has_a_result() {
    with_driver(|driver, cx| {
        driver.link_up(LinkId(0));
        let conn = driver.transfer.conns.ids()[0];
        // The connection is still being dialed, so no request can be sent on it.
        driver.transfer.request(ReqId(7), conn, RequestRange::Full, None);
        assert!(matches!(driver.transfer.pending_inputs[..], [Input::Closed { conn: of, .. }] if of == conn));
        driver.poll_once(cx);
        assert!(driver.transfer.pending_inputs.is_empty());
        assert_eq!(driver.transfer.link_stats[0].requests, 0);
        // The machine has received the result: it backs off before it opens another connection.
        assert!(driver.transfer.conns.ids().is_empty());
        driver.transfer.connect(ConnId(9), LinkId(0), UrlId(5), None);
        driver.transfer.request(ReqId(8), ConnId(10), RequestRange::Full, None);
        let closed_conn = |input: &Input| if let Input::Closed { conn, .. } = input { Some(conn.0) } else { None };
        assert_eq!(driver.transfer.pending_inputs.iter().filter_map(closed_conn).collect::<Vec<_>>(), [9, 10]);
    });
}
