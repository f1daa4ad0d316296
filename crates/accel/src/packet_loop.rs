//! The thread on which packets pass the machine.
//!
//! 1. One thread handles all packets: it sleeps until the queue, a socket, a command or the machine's own deadline
//!    wakes it. No async runtime is involved.
//! 2. Packet rules are set last and removed first, so that no packet waits in a queue without a reader.
//! 3. If the thread ends by itself, [`Engine::failed`] says why; the queue is closed then, and packets pass.
//! 4. However the process ends, its sockets close: the rules let packets pass from then on.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use marline_core::accel::{Accelerator, Config, FetchId, Input, Mechanism, PacketBytes};
use marline_core::wire::netlink::messages;
use marline_net::recorded_machine::RecordedMachine;
use marline_sys::clock;
use marline_sys::netlink::{RouteSocket, is_overflow};
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::oneshot;

use super::status::{self, Status};
use super::{AccelError, privileges};
use crate::bpf::driver;
use crate::driver::{Driver, NETLINK_GROUPS};
use crate::engine_config::{Command, EngineConfig};
use crate::iptables::{self, Rules};
use crate::links::AccelLink;
use crate::nfqueue::{Direction, NfQueue, QueueNumbers, Verdict, is_open};
use crate::pending_file::PendingFile;
use crate::poller::Poller;

/// Packets pass the machine while this lives. Dropped, everything is as it was before.
#[derive(Debug)]
pub struct Engine {
    rules: Option<Rules>,
    handle: LoopHandle,
    thread: Option<JoinHandle<()>>,
    failure: oneshot::Receiver<AccelError>,
}

/// Reaches the thread from anywhere.
#[derive(Clone, Debug)]
pub struct LoopHandle {
    commands: mpsc::Sender<Command>,
    wake_fd: Arc<OwnedFd>,
}

impl Engine {
    /// Starts it, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// Something is missing, or in use; nothing is changed then.
    pub fn start(setup: EngineConfig) -> Result<Self, AccelError> {
        privileges::check_privileges()?;
        let primary =
            setup.links.first().ok_or_else(|| AccelError::Usage("there is no primary link".into()))?.clone();
        let incoming = needs_incoming(&setup.config).then(|| incoming_queue(&primary));
        let numbers = QueueNumbers { outgoing: outgoing_queue(&primary), incoming };
        // A run from before its interface was plugged in again has another number.
        let was_served = iptables::is_in_use(&primary.name);
        // The owner of the queue is the only accelerator of this link.
        let queue = NfQueue::open(numbers);
        if was_served || (queue.is_err() && is_open(numbers.outgoing)) {
            return Err(AccelError::already_running(&primary.name));
        }
        // Rules of a killed run.
        iptables::remove_orphaned(&primary.name)?;
        // The least intrusive driver that suffices; if the kernel does not support it, packets are queued instead.
        match driver::secondary_rate(&setup).map(|up| driver::open(&setup, up)) {
            Some(Ok(steering)) => {
                // No packet comes to this queue; it marks the link as taken. A kernel without NFQUEUE knows no other
                // driver.
                let taken = queue.ok();
                return Self::run(move |_, commands| {
                    let _taken = taken;
                    steering.run(&commands)
                });
            }
            Some(Err(error)) => {
                tracing::info!(%error, "acknowledgements are offloaded by the queue instead of BPF")
            }
            None => {}
        }
        let queue = queue?;
        let machine = RecordedMachine::new(Accelerator::new(setup.config.clone()), setup.config, setup.trace);
        let machine = machine.map_err(|(path, error)| {
            AccelError::Unsupported(format!("{}: the log cannot be written: {error}", path.display()))
        })?;
        let pending_file = setup.pending_file.map(|path| {
            PendingFile::open(&path)
                .map_err(AccelError::kernel(format!("{}: the file of pending early ACKs", path.display())))
        });
        let driver = Driver::new(machine, pending_file.transpose()?, setup.links, setup.fetch_commands)?;
        let monitor =
            RouteSocket::listen(NETLINK_GROUPS).map_err(AccelError::kernel("a socket for events of links"))?;
        let flow_filter = setup.flow_filter.to_string();
        let mut engine = Self::run(move |wake, commands| {
            PacketLoop { poller: Poller::new()?, queue, driver, monitor, wake, commands, flow_filter }.run()
        })?;
        engine.rules = Some(Rules::set(&primary.name, &setup.flow_filter, numbers)?);
        Ok(engine)
    }

    /// Starts the thread.
    fn run(
        body: impl FnOnce(Arc<OwnedFd>, mpsc::Receiver<Command>) -> io::Result<()> + Send + 'static,
    ) -> Result<Self, AccelError> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = Arc::new(wake.map_err(io::Error::from).map_err(AccelError::kernel("an eventfd"))?);
        let (sender, commands) = mpsc::channel();
        let (failure_sender, failure) = oneshot::channel();
        let wake_read = Arc::clone(&wake);
        let body = move || {
            if let Err(error) = body(wake_read, commands) {
                // The engine may have been dropped.
                let _ = failure_sender.send(AccelError::kernel("the packets' thread")(error));
            }
        };
        let thread = std::thread::Builder::new().name("packets".into()).spawn(body);
        let thread = thread.map_err(AccelError::kernel("a thread"))?;
        Ok(Self {
            rules: None,
            handle: LoopHandle { commands: sender, wake_fd: wake },
            thread: Some(thread),
            failure,
        })
    }

    /// A handle to the thread.
    pub fn handle(&self) -> LoopHandle {
        self.handle.clone()
    }

    /// Waits until it cannot continue.
    pub async fn failed(&mut self) -> AccelError {
        let ended = (&mut self.failure).await;
        ended.unwrap_or_else(|_| AccelError::Unsupported("the packets' thread is gone".into()))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        drop(self.rules.take());
        self.handle.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported already.
            let _ = thread.join();
        }
    }
}

impl LoopHandle {
    /// The status; none: it has ended.
    pub async fn status(&self) -> Option<Status> {
        let (sender, response) = oneshot::channel();
        self.send(Command::Status(sender));
        response.await.ok()
    }

    /// The result of a range of a fetch; none: it could not be fetched.
    pub fn fetched(&self, fetch: FetchId, range: u32, bytes: Option<Vec<u8>>) {
        self.send(Command::Fetched(fetch, range, bytes));
    }

    fn send(&self, command: Command) {
        // A thread that has ended receives nothing.
        let _ = self.commands.send(command);
        let _ = rustix::io::write(&*self.wake_fd, &1_u64.to_ne_bytes());
    }
}

/// The queue of a primary link. Our choice: an even number from 0x6000 on, by the device's index, so that two primary
/// links have two queues.
pub(super) fn outgoing_queue(primary: &AccelLink) -> u16 {
    0x6000 + u16::try_from(primary.index % 0x800).unwrap_or(0) * 2
}

/// The queue of incoming packets.
fn incoming_queue(primary: &AccelLink) -> u16 {
    outgoing_queue(primary) + 1
}

/// Whether something may be done for uploads: then the peer's acknowledgements are held, too.
fn needs_incoming(config: &Config) -> bool {
    use Mechanism::{EifelUndo, OutageRevert, WithheldAck, ZeroWindowFreeze};
    config.mechanisms.has_any(&[EifelUndo, WithheldAck, OutageRevert, ZeroWindowFreeze])
}

/// State of the thread.
struct PacketLoop {
    poller: Poller,
    queue: NfQueue,
    driver: Driver,
    monitor: RouteSocket,
    wake: Arc<OwnedFd>,
    commands: mpsc::Receiver<Command>,
    flow_filter: String,
}

impl PacketLoop {
    fn run(&mut self) -> io::Result<()> {
        let mut flushed = clock::now();
        self.poller.register(&self.wake)?;
        self.poller.register(&self.monitor)?;
        self.driver.links.iter().try_for_each(|sockets| self.poller.register(&sockets.prober))?;
        loop {
            if self.driver.adjust_capture(|closing| self.poller.on_captured(Some(closing))) {
                self.poller.on_captured(self.driver.capture.as_ref());
            }
            self.driver.reserved_ports.added().try_for_each(|line| self.poller.register(line))?;
            let timeout = self.driver.time_to_deadline().unwrap_or(MAX_SLEEP).min(MAX_SLEEP);
            let min_rtt = || self.driver.machine.machine().min_rtt();
            let has_wakeup = self.poller.wait(&self.queue, self.driver.capture.as_ref(), timeout, min_rtt)?;
            for _ in 0..MAX_BATCHES {
                // What came before a packet leaves must be known when it leaves.
                if self.driver.drain_capture()? {
                    self.poller.on_captured(self.driver.capture.as_ref());
                }
                let has_more = self.handle_batch()?;
                self.driver.tick();
                if !has_more {
                    break;
                }
            }
            if has_wakeup && !self.handle_wakeup()? {
                break;
            }
            if clock::now() - flushed > SECOND {
                flushed = clock::now();
                self.driver.machine.flush();
                if let Some((path, error)) = self.driver.machine.take_error() {
                    tracing::error!(file = %path.display(), %error, "the decision log cannot be written and ends here");
                }
                self.driver.update_counters();
            }
        }
        // Packets that still wait pass unchanged.
        while self.queue.receive()? {
            self.queue.decide(|_, _, decide| decide(Verdict::Accept));
            self.queue.flush()?;
        }
        self.driver.machine.flush();
        Ok(())
    }

    /// Something other than a queued packet is ready; false: stop.
    fn handle_wakeup(&mut self) -> io::Result<bool> {
        self.handle_netlink();
        // A device that returned has another socket.
        self.driver.links.iter().try_for_each(|sockets| self.poller.register(&sockets.prober))?;
        self.driver.handle_probe_replies();
        self.driver.handle_reserved_ports();
        Ok(self.handle_commands())
    }

    /// Handles one batch of queued packets. Returns whether more may wait.
    fn handle_batch(&mut self) -> io::Result<bool> {
        let Self { queue, driver, poller, .. } = self;
        if !queue.receive()? {
            return Ok(false);
        }
        queue.decide(|direction, packet, decide| {
            let bytes = PacketBytes(packet.to_vec());
            let input =
                if direction == Direction::Outgoing { Input::Outgoing(bytes) } else { Input::Incoming(bytes) };
            driver.decide_queued(input, packet, decide);
        });
        queue.flush()?;
        driver.counts.batches += 1;
        poller.on_taken(queue.count());
        Ok(queue.may_have_more())
    }

    /// Handles changes of links, addresses and routes.
    fn handle_netlink(&mut self) {
        loop {
            match self.monitor.next_event() {
                Ok(bytes) => {
                    for message in messages(&bytes) {
                        self.driver.on_event(&message);
                    }
                }
                Err(error) if is_overflow(&error) => self.driver.resync_netlink(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// Handles commands; false: stop.
    fn handle_commands(&mut self) -> bool {
        let mut count = [0; 8];
        // There may be nothing to read.
        let _ = rustix::io::read(&*self.wake, &mut count);
        loop {
            match self.commands.try_recv() {
                Ok(Command::Status(to)) => {
                    // The requester may have gone.
                    let _ = to.send(self.status());
                }
                Ok(Command::Fetched(fetch, range, bytes)) => {
                    self.driver.handle_input(Input::Fetched { fetch, range, bytes: bytes.map(PacketBytes) });
                }
                Ok(Command::Stop) | Err(mpsc::TryRecvError::Disconnected) => return false,
                Err(mpsc::TryRecvError::Empty) => return true,
            }
        }
    }

    fn status(&mut self) -> Status {
        self.driver.update_counters();
        let (now, machine) = (self.driver.now(), self.driver.machine.machine());
        let views = machine.links(now);
        let link = |sockets: &crate::driver::LinkSockets| {
            status::Link::of(&sockets.link, views.iter().find(|view| view.link == sockets.link.link))
        };
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: now.as_secs_f64(),
            flow_filter: self.flow_filter.clone(),
            mechanisms: machine.config().mechanisms.iter().collect(),
            driver: "nfqueue".to_owned(),
            links: self.driver.links.iter().map(link).collect(),
            flows: machine.flows(now).into_iter().map(|view| status::Flow::of(view, now)).collect(),
            counts: status::Counts { cpu_s: clock::thread_time().as_secs_f64(), ..self.driver.counts },
        }
    }
}

/// Our choice: no command waits for longer than a millisecond, however many packets come.
const MAX_BATCHES: usize = 8;
const SECOND: u64 = 1_000_000_000;
/// Our choice: often enough for a log that is flushed each second.
const MAX_SLEEP: Duration = Duration::from_secs(1);
