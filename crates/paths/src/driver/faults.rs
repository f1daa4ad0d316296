//! The driver beside a kernel that fails: a list of sockets that the test tells.
//!
//! Everything else is this kernel's own; nothing here needs a privilege.

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

use super::super::Untouched;
use super::table::{Conn, Sub};
use super::*;

/// A kernel that answers each question about sockets with an error: the next one of its list, and 0 after the last.
#[derive(Clone, Default)]
struct Kernel {
    errors: Arc<Mutex<VecDeque<i32>>>,
    asked: Arc<AtomicUsize>,
}

impl Kernel {
    fn that_says(errors: &[i32]) -> Self {
        Self { errors: Arc::new(Mutex::new(errors.iter().copied().collect())), ..Self::default() }
    }

    /// Its socket for questions; it ends with it.
    fn sockets(&self) -> Sockets {
        let (ours, its) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let kernel = self.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 16_384];
            while let Ok((_, length)) = recv(&its, &mut buffer, RecvFlags::empty())
                && length > 0
            {
                for question in messages(&buffer[..length]) {
                    kernel.asked.fetch_add(1, Ordering::Relaxed);
                    let error = kernel.errors.lock().unwrap().pop_front().unwrap_or(0);
                    let mut answer = [0; 20];
                    answer[..4].copy_from_slice(&20_u32.to_ne_bytes());
                    answer[4..6].copy_from_slice(&2_u16.to_ne_bytes());
                    answer[8..12].copy_from_slice(&question.sequence.to_ne_bytes());
                    answer[16..].copy_from_slice(&(-error).to_ne_bytes());
                    // Whoever has asked may have gone.
                    let _ = send(&its, &answer, SendFlags::empty());
                }
            }
        });
        Sockets::from(Socket::from(ours))
    }
}

/// A machine that only listens.
struct Ear(Vec<Input>);

impl Machine for Ear {
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

fn driver(kernel: &Kernel) -> Driver<Ear> {
    let model = Model::new("nothing", BTreeMap::new(), ConcurrentDraw::default(), Power::ZERO).unwrap();
    let log = Logged::new(Ear(Vec::new()), Config::new(model, Vec::new()), None).unwrap();
    let parts = Parts { manager: None, sockets: kernel.sockets(), routes: RouteSocket::open().unwrap() };
    Driver::new(log, parts, Lines::new(&[], false), Mode::DryRun, Box::new(Untouched))
}

/// Runs it until it has answered once after `enough` questions to the kernel.
fn run(kernel: &Kernel, enough: usize) -> Result<(), PathsError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (control, mut asked) = mpsc::channel(1);
        let (stop, stopped) = oneshot::channel::<()>();
        let mut monitor = Monitor::new().unwrap();
        let mut driver = driver(kernel);
        let asks = async {
            while kernel.asked.load(Ordering::Relaxed) < enough {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let (to, answer) = oneshot::channel();
            control.send(Ask::Snapshot(to)).await.unwrap();
            assert_eq!(answer.await.unwrap().connections, []);
            drop(stop);
        };
        let runs = driver.run(&mut asked, None, &mut monitor, async { drop(stopped.await) });
        tokio::pin!(asks);
        tokio::pin!(runs);
        tokio::select! {
            ended = &mut runs => ended,
            () = &mut asks => runs.await,
        }
    })
}

#[test]
fn what_heals_ends_no_run_neither_at_its_start_nor_later() {
    // No buffers, interrupted, again, busy, out of memory; then the four dumps of a start, and again.
    let kernel = Kernel::that_says(&[105, 4, 11, 16, 12, 0, 0, 0, 0, 105, 105, 16]);
    run(&kernel, 16).unwrap();
}

#[test]
fn what_does_not_heal_ends_the_run_with_a_line() {
    let error = run(&Kernel::that_says(&[1]), usize::MAX).unwrap_err();
    assert!(matches!(error, PathsError::NotPermitted { .. }), "{error}");
    let error = run(&Kernel::that_says(&[0, 0, 0, 0, 2]), usize::MAX).unwrap_err();
    assert!(error.to_string().starts_with("sock_diag: "), "{error}");
}

#[test]
fn only_a_clear_answer_ends_a_connection_that_a_dump_lacks() {
    let kernel = Kernel::default();
    let mut driver = driver(&kernel);
    let (conn, local) = (ConnId(7), "10.0.0.2:4000".parse().unwrap());
    let remote = "192.0.2.1:443".parse().unwrap();
    driver.table.conns.insert(conn, Conn::new("10.0.0.2".parse().unwrap(), remote, Instant::ZERO));
    driver.table.add(conn, |id| Sub::new(id, local, remote, 0)).unwrap();
    // Four empty lists, and then: no buffers, for the connection and for its subflow.
    let says = |errors: &[i32]| kernel.errors.lock().unwrap().extend(errors);
    says(&[0, 0, 0, 0, 105, 105]);
    driver.resync(false).unwrap();
    assert_eq!(driver.table.conns[&conn].subflows.len(), 1);
    // No such subflow.
    says(&[0, 0, 0, 0, 105, 2]);
    driver.resync(false).unwrap();
    assert_eq!(driver.table.conns[&conn].subflows.len(), 0);
    // No such connection.
    says(&[0, 0, 0, 0, 2]);
    driver.resync(false).unwrap();
    assert!(driver.table.conns.is_empty());
    let ears: io::Result<Ear> = driver.log.finish().map_err(|(_, error)| error);
    let heard = ears.unwrap().0;
    assert!(matches!(heard[..], [Input::SubflowDown { .. }, Input::Closed { .. }]), "{heard:?}");
}
