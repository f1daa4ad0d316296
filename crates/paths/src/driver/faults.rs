//! Tests of the driver with a failing kernel, whose list of sockets the test scripts.
//!
//! Everything else is the real kernel; no privilege is needed.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use marline_core::energy::{ConcurrentDraw, Model};
use marline_core::paths::{Config, Input};
use marline_core::units::Power;
use marline_core::wire::netlink::messages;
use marline_sys::netlink::Socket;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use tokio::sync::oneshot;

use super::super::NoHostConfig;
use super::subflow_table::{ConnEntry, Subflow};
use super::*;

/// A kernel that replies to each query of sockets with the next error of a list, and with 0 after the last.
#[derive(Clone, Default)]
struct FailingKernel {
    errors: Arc<Mutex<VecDeque<i32>>>,
    query_count: Arc<AtomicUsize>,
}

impl FailingKernel {
    fn failing_with(errors: &[i32]) -> Self {
        Self { errors: Arc::new(Mutex::new(errors.iter().copied().collect())), ..Self::default() }
    }

    /// Its sock_diag socket.
    fn sock_diag(&self) -> SockDiag {
        let (driver_end, kernel_end) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let kernel = self.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 16_384];
            while let Ok((_, length)) = recv(&kernel_end, &mut buffer, RecvFlags::empty())
                && length > 0
            {
                for request in messages(&buffer[..length]) {
                    kernel.query_count.fetch_add(1, Ordering::Relaxed);
                    let error = kernel.errors.lock().unwrap().pop_front().unwrap_or(0);
                    let mut ack = [0; 20];
                    ack[..4].copy_from_slice(&20_u32.to_ne_bytes());
                    ack[4..6].copy_from_slice(&2_u16.to_ne_bytes());
                    ack[8..12].copy_from_slice(&request.sequence.to_ne_bytes());
                    ack[16..].copy_from_slice(&(-error).to_ne_bytes());
                    // The client may have ended.
                    let _ = send(&kernel_end, &ack, SendFlags::empty());
                }
            }
        });
        SockDiag::from(Socket::from(driver_end))
    }
}

/// A machine that only records inputs.
struct RecordingMachine(Vec<Input>);

impl Machine for RecordingMachine {
    type Input = Input;
    type Output = Output;
    type Reason = ();

    fn handle(&mut self, _: Instant, input: Input) {
        self.0.push(input);
    }
    fn tick(&mut self, _: Instant) {}
    fn poll(&mut self) -> Option<Output> {
        None
    }
    fn deadline(&self) -> Option<(Instant, ())> {
        None
    }
}

fn test_driver(kernel: &FailingKernel) -> Driver<RecordingMachine> {
    let model = Model::new("nothing", BTreeMap::new(), ConcurrentDraw::default(), Power::ZERO).unwrap();
    let log = RecordedMachine::new(RecordingMachine(Vec::new()), Config::new(model, Vec::new()), None).unwrap();
    let kernel_sockets = KernelSockets {
        path_manager: None,
        sock_diag: kernel.sock_diag(),
        route_socket: RouteSocket::open().unwrap(),
    };
    Driver::new(log, kernel_sockets, LinkInterfaces::new(&[], false), Mode::DryRun, Box::new(NoHostConfig))
}

/// Runs the driver until the kernel has received this number of queries and the driver has then sent a snapshot.
fn run_until_queries(kernel: &FailingKernel, min_queries: usize) -> Result<(), PathsError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (control, mut queries) = mpsc::channel(1);
        let (stop, stopped) = oneshot::channel::<()>();
        let mut monitor = Monitor::new().unwrap();
        let mut driver = test_driver(kernel);
        let client = async {
            while kernel.query_count.load(Ordering::Relaxed) < min_queries {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let (reply_tx, reply_rx) = oneshot::channel();
            control.send(DriverQuery::Snapshot(reply_tx)).await.unwrap();
            assert_eq!(reply_rx.await.unwrap().connections, []);
            drop(stop);
        };
        let driver_run = driver.run(&mut queries, None, &mut monitor, async { drop(stopped.await) });
        tokio::pin!(client);
        tokio::pin!(driver_run);
        tokio::select! {
            result = &mut driver_run => result,
            () = &mut client => driver_run.await,
        }
    })
}

#[test]
fn transient_errors_do_not_end_the_run() {
    // ENOBUFS, EINTR, EAGAIN, EBUSY, ENOMEM; then the four dumps of a start, and again.
    let kernel = FailingKernel::failing_with(&[105, 4, 11, 16, 12, 0, 0, 0, 0, 105, 105, 16]);
    run_until_queries(&kernel, 16).unwrap();
}

#[test]
fn permanent_errors_end_the_run_with_one_line() {
    // EPERM at once, and ENOENT after the first dump.
    let error = run_until_queries(&FailingKernel::failing_with(&[1]), usize::MAX).unwrap_err();
    assert!(matches!(error, PathsError::NotPermitted { .. }), "{error}");
    let error = run_until_queries(&FailingKernel::failing_with(&[0, 0, 0, 0, 2]), usize::MAX).unwrap_err();
    assert!(error.to_string().starts_with("sock_diag: "), "{error}");
}

#[test]
fn only_a_definite_reply_ends_a_connection_that_a_dump_lacks() {
    let kernel = FailingKernel::default();
    let mut driver = test_driver(&kernel);
    let (conn, local) = (ConnId(7), "10.0.0.2:4000".parse().unwrap());
    let remote = "192.0.2.1:443".parse().unwrap();
    driver.subflow_table.conns.insert(conn, ConnEntry::new("10.0.0.2".parse().unwrap(), remote, Instant::ZERO));
    driver.subflow_table.add_subflow(conn, |id| Subflow::new(id, local, remote, 0)).unwrap();
    // Four empty lists, and then ENOBUFS for the connection and for its subflow.
    let fail_next = |errors: &[i32]| kernel.errors.lock().unwrap().extend(errors);
    fail_next(&[0, 0, 0, 0, 105, 105]);
    driver.resync(false).unwrap();
    assert_eq!(driver.subflow_table.conns[&conn].subflows.len(), 1);
    // No such subflow.
    fail_next(&[0, 0, 0, 0, 105, 2]);
    driver.resync(false).unwrap();
    assert_eq!(driver.subflow_table.conns[&conn].subflows.len(), 0);
    // No such connection.
    fail_next(&[0, 0, 0, 0, 2]);
    driver.resync(false).unwrap();
    assert!(driver.subflow_table.conns.is_empty());
    let machine: io::Result<RecordingMachine> = driver.machine.finish().map_err(|(_, error)| error);
    let inputs = machine.unwrap().0;
    assert!(matches!(inputs[..], [Input::SubflowDown { .. }, Input::Closed { .. }]), "{inputs:?}");
}
