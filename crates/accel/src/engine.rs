//! The thread on which packets pass the machine.
//!
//! In: links, rules' words, a configuration. Out: an [`Engine`]; flows are helped while it lives.
//!
//! 1. One thread does all that touches packets: it sleeps until the queue, a socket, an order or the machine's own deadline
//!    wakes it. A runtime is not on this way.
//! 2. Rules come last and go first. So nothing waits in a queue that nobody reads.
//! 3. If the thread ends by itself, [`Engine::lost`] says why; the queue is closed then, and packets pass.
//! 4. However the process ends, its sockets close: the queue's rules let packets pass from then on.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use marline_core::accel::{Accelerator, Bytes, Config, FetchId, Input, Mechanism};
use marline_core::wire::netlink::messages;
use marline_net::recorded_machine::RecordedMachine;
use marline_sys::clock;
use marline_sys::netlink::{RouteSocket, is_overflow};
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::{mpsc::UnboundedSender, oneshot};

use super::flows::Flows;
use super::ledger::Ledger;
use super::queue::{Fate, Going, Queue, is_open};
use super::road::Road;
use super::rules::{self, Numbers, Rules};
use super::sleep::Sleep;
use super::status::{self, Status};
use super::steering;
use super::works::{EVENTS, Errand, Works};
use super::{AccelError, needs};

/// What an engine is made from.
#[derive(Debug)]
pub struct Setup {
    /// What the machine is told.
    pub config: Config,
    /// The links, in the order of their numbers.
    pub roads: Vec<Road>,
    /// Which flows are meant.
    pub flows: Flows,
    /// Where the log of decisions goes; none: nowhere.
    pub trace: Option<PathBuf>,
    /// Where what is owed to flows is written down ([`super::ledger()`]); none: nowhere, and nobody pays it after a death.
    pub ledger: Option<PathBuf>,
    /// Who gets bytes from servers; none: they cannot be had.
    pub errands: Option<UnboundedSender<Errand>>,
}

/// Packets pass the machine while this lives. Dropped, everything is as it was before.
#[derive(Debug)]
pub struct Engine {
    rules: Option<Rules>,
    bell: Bell,
    thread: Option<JoinHandle<()>>,
    ended: oneshot::Receiver<AccelError>,
}

/// Reaches the thread from anywhere.
#[derive(Clone, Debug)]
pub struct Bell {
    orders: mpsc::Sender<Order>,
    wake: Arc<OwnedFd>,
}

#[derive(Debug)]
pub(super) enum Order {
    Tell(oneshot::Sender<Status>),
    Fetched(FetchId, u32, Option<Vec<u8>>),
    End,
}

impl Engine {
    /// Starts it, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// Something is missing, or taken; nothing is changed then.
    pub fn start(setup: Setup) -> Result<Self, AccelError> {
        needs::privileges()?;
        let primary =
            setup.roads.first().ok_or_else(|| AccelError::Wrong("there is no primary link".into()))?.clone();
        let arriving = coming(&setup.config).then(|| coming_queue_of(&primary));
        let numbers = Numbers { leaving: queue_of(&primary), arriving };
        // One that runs since before its interface was plugged in again has another number.
        let was_served = rules::are_served(&primary.name);
        // Whoever has it is the only one on this link.
        let queue = Queue::open(numbers);
        if was_served || (queue.is_err() && is_open(numbers.leaving)) {
            return Err(AccelError::taken(&primary.name));
        }
        // What a run that was killed has left.
        rules::sweep(&primary.name)?;
        // The least intrusive that serves; where the kernel cannot, packets wait for a word instead.
        match steering::suits(&setup).map(|up| steering::open(&setup, up)) {
            Some(Ok(steering)) => {
                // Nothing comes there. A kernel without queues knows no other driver.
                let taken = queue.ok();
                return Self::run(move |_, ordered| {
                    let _taken = taken;
                    steering.run(&ordered)
                });
            }
            Some(Err(error)) => tracing::info!(%error, "acknowledgements are led by the queue instead"),
            None => {}
        }
        let queue = queue?;
        let machine = RecordedMachine::new(Accelerator::new(setup.config.clone()), setup.config, setup.trace);
        let machine = machine.map_err(|(path, error)| {
            AccelError::Unfit(format!("{}: the log cannot be written: {error}", path.display()))
        })?;
        let ledger = setup.ledger.map(|path| {
            Ledger::open(&path).map_err(AccelError::kernel(format!("{}: what is owed to flows", path.display())))
        });
        let works = Works::new(machine, ledger.transpose()?, setup.roads, setup.errands)?;
        let monitor = RouteSocket::listen(EVENTS).map_err(AccelError::kernel("a socket for events of links"))?;
        let meant = setup.flows.to_string();
        let mut engine = Self::run(move |wake, ordered| {
            Loop { sleep: Sleep::new()?, queue, works, monitor, wake, ordered, meant }.run()
        })?;
        engine.rules = Some(Rules::set(&primary.name, &setup.flows, numbers)?);
        Ok(engine)
    }

    /// Starts the thread.
    fn run(
        body: impl FnOnce(Arc<OwnedFd>, mpsc::Receiver<Order>) -> io::Result<()> + Send + 'static,
    ) -> Result<Self, AccelError> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = Arc::new(wake.map_err(io::Error::from).map_err(AccelError::kernel("an eventfd"))?);
        let (orders, ordered) = mpsc::channel();
        let (tell, ended) = oneshot::channel();
        let heard = Arc::clone(&wake);
        let body = move || {
            if let Err(error) = body(heard, ordered) {
                // Whoever is not there any more does not want to know.
                let _ = tell.send(AccelError::kernel("the packets' thread")(error));
            }
        };
        let thread = std::thread::Builder::new().name("packets".into()).spawn(body);
        let thread = thread.map_err(AccelError::kernel("a thread"))?;
        Ok(Self { rules: None, bell: Bell { orders, wake }, thread: Some(thread), ended })
    }

    /// What reaches it from other threads.
    pub fn bell(&self) -> Bell {
        self.bell.clone()
    }

    /// Waits until it cannot go on.
    pub async fn lost(&mut self) -> AccelError {
        let ended = (&mut self.ended).await;
        ended.unwrap_or_else(|_| AccelError::Unfit("the packets' thread is gone".into()))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        drop(self.rules.take());
        self.bell.ring(Order::End);
        if let Some(thread) = self.thread.take() {
            // A panic of its own has been told already.
            let _ = thread.join();
        }
    }
}

impl Bell {
    /// How it stands; none: it has ended.
    pub async fn status(&self) -> Option<Status> {
        let (tell, told) = oneshot::channel();
        self.ring(Order::Tell(tell));
        told.await.ok()
    }

    /// What became of a range of a fetch; none: it cannot be had.
    pub fn fetched(&self, fetch: FetchId, range: u32, bytes: Option<Vec<u8>>) {
        self.ring(Order::Fetched(fetch, range, bytes));
    }

    fn ring(&self, order: Order) {
        // One that has ended hears nothing.
        let _ = self.orders.send(order);
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }
}

/// The queue of a primary link. chosen: an even number from 0x6000 on, by the device's number, so that two primaries have two
/// queues.
pub(super) fn queue_of(primary: &Road) -> u16 {
    0x6000 + u16::try_from(primary.index % 0x800).unwrap_or(0) * 2
}

/// The queue of what comes over it.
fn coming_queue_of(primary: &Road) -> u16 {
    queue_of(primary) + 1
}

/// Whether something may be done for uploads: then the far end's acknowledgements wait for a word, too.
fn coming(config: &Config) -> bool {
    use Mechanism::{Freeze, Reserve, Revert, Undo};
    config.mechanisms.has_any(&[Undo, Reserve, Revert, Freeze])
}

/// What the thread owns.
struct Loop {
    sleep: Sleep,
    queue: Queue,
    works: Works,
    monitor: RouteSocket,
    wake: Arc<OwnedFd>,
    ordered: mpsc::Receiver<Order>,
    meant: String,
}

impl Loop {
    fn run(&mut self) -> io::Result<()> {
        let mut flushed = clock::now();
        self.sleep.mind(&self.wake)?;
        self.sleep.mind(&self.monitor)?;
        self.works.ways.iter().try_for_each(|way| self.sleep.mind(&way.pinger))?;
        loop {
            if self.works.adjust(|closing| self.sleep.on_seen(Some(closing))) {
                self.sleep.on_seen(self.works.eye.as_ref());
            }
            self.works.calls.added().try_for_each(|line| self.sleep.mind(line))?;
            let rest = self.works.rest().unwrap_or(LONGEST).min(LONGEST);
            let trip = || self.works.machine.machine().shortest_trip();
            let is_called = self.sleep.sleep(&self.queue, self.works.eye.as_ref(), rest, trip)?;
            for _ in 0..TURNS {
                // What came before a packet leaves is known when it leaves.
                if self.works.look()? {
                    self.sleep.on_seen(self.works.eye.as_ref());
                }
                let more = self.take()?;
                self.works.tick();
                if !more {
                    break;
                }
            }
            if is_called && !self.called()? {
                break;
            }
            if clock::now() - flushed > SECOND {
                flushed = clock::now();
                self.works.machine.flush();
                if let Some((path, error)) = self.works.machine.take_error() {
                    tracing::error!(file = %path.display(), %error, "the log ends here");
                }
                self.works.take_stock();
            }
        }
        // Whoever waits still leaves as he came.
        while self.queue.receive()? {
            self.queue.decide(|_, _, give| give(Fate::Leave));
            self.queue.flush()?;
        }
        self.works.machine.flush();
        Ok(())
    }

    /// Something else than a packet that leaves is there; false: this is the end.
    fn called(&mut self) -> io::Result<bool> {
        self.listen();
        // A device that came back has another socket.
        self.works.ways.iter().try_for_each(|way| self.sleep.mind(&way.pinger))?;
        self.works.hear();
        self.works.hear_calls();
        Ok(self.obey())
    }

    /// One batch of those that wait; whether more may.
    fn take(&mut self) -> io::Result<bool> {
        let Self { queue, works, sleep, .. } = self;
        if !queue.receive()? {
            return Ok(false);
        }
        queue.decide(|going, packet, give| {
            let bytes = Bytes(packet.to_vec());
            let input = if going == Going::Out { Input::Leaving(bytes) } else { Input::Arriving(bytes) };
            works.held(input, packet, give);
        });
        queue.flush()?;
        works.counts.batches += 1;
        sleep.on_taken(queue.count());
        Ok(queue.is_full())
    }

    /// Links that came, went or changed, with their addresses and routes.
    fn listen(&mut self) {
        loop {
            match self.monitor.next_event() {
                Ok(bytes) => {
                    for message in messages(&bytes) {
                        self.works.on_event(&message);
                    }
                }
                Err(error) if is_overflow(&error) => self.works.hear_all(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// Does what others ask; false: this is the end.
    fn obey(&mut self) -> bool {
        let mut rung = [0; 8];
        // Nobody may have rung.
        let _ = rustix::io::read(&*self.wake, &mut rung);
        loop {
            match self.ordered.try_recv() {
                Ok(Order::Tell(to)) => {
                    // Whoever asked may have gone.
                    let _ = to.send(self.status());
                }
                Ok(Order::Fetched(fetch, range, bytes)) => {
                    self.works.tell(Input::Fetched { fetch, range, bytes: bytes.map(Bytes) });
                }
                Ok(Order::End) | Err(mpsc::TryRecvError::Disconnected) => return false,
                Err(mpsc::TryRecvError::Empty) => return true,
            }
        }
    }

    fn status(&mut self) -> Status {
        self.works.take_stock();
        let (now, machine) = (self.works.now(), self.works.machine.machine());
        let views = machine.links(now);
        let link = |way: &super::works::Way| {
            status::Link::of(&way.road, views.iter().find(|view| view.link == way.road.link))
        };
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            up_s: now.as_secs_f64(),
            meant: self.meant.clone(),
            mechanisms: machine.config().mechanisms.iter().collect(),
            driver: "nfqueue".to_owned(),
            links: self.works.ways.iter().map(link).collect(),
            flows: machine.flows(now).into_iter().map(|view| status::Flow::of(view, now)).collect(),
            counts: status::Counts { cpu_s: clock::thread_time().as_secs_f64(), ..self.works.counts },
        }
    }
}

/// chosen: nobody who gives orders waits for longer than a millisecond, however many packets come.
const TURNS: usize = 8;
const SECOND: u64 = 1_000_000_000;
/// chosen: often enough for a log that is flushed each second.
const LONGEST: Duration = Duration::from_secs(1);
