//! The emulator's thread, seen from outside: start it, tell it that a command begins, ask it what it saw.

mod engine;
mod lateness;
mod report;
mod segment;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender, SyncSender};
use std::thread::JoinHandle;
use std::time::Duration;

use marline_sim::spec::{Change, LinkSpec};
use marline_sys::process::Room;
use marline_sys::sched;
use marline_terminal::output;
use rustix::event::{EventfdFlags, eventfd};

use crate::network::TunPair;
use crate::{LabError, NAME};
use engine::{Engine, Order};
pub use lateness::Lateness;
pub use report::{Emulation, LinkRun, Priority, Sign};

/// The running thread. Dropping it ends the thread, and with it the room.
#[derive(Debug)]
pub(crate) struct Emulator {
    orders: Sender<Order>,
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Emulator {
    /// Starts the thread, which also opens the room in which the lab's programs will live: the room dies with its
    /// thread, and this one lives exactly as long as the lab.
    pub(crate) fn start(
        links: Vec<(LinkSpec, TunPair)>,
        events: Vec<(Duration, usize, Change)>,
        seed: u64,
    ) -> Result<(Self, Room), LabError> {
        let (orders, inbox) = mpsc::channel();
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = Arc::new(bell.map_err(|e| LabError::Setup { step: "eventfd".into(), source: e.into() })?);
        let engine = Engine::new(links, events, seed, bell.clone(), inbox).map_err(LabError::at("emulator"))?;
        let (ready, room) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name("emulator".into()).spawn(move || work(engine, &ready));
        let thread = thread.map_err(LabError::at("emulator's thread"))?;
        let room = room.recv().map_err(|_| LabError::Emulator("it did not start".into()))?;
        let room = room.map_err(LabError::at("PID namespace"))?;
        Ok((Self { orders, bell, thread: Some(thread) }, room))
    }

    /// Fresh links and counters, from this time of the clock on. Comes back when they are in place.
    pub(crate) fn begin(&self, zero: u64) -> Result<(), LabError> {
        self.ask(|done| Order::Begin(zero, done))
    }

    /// Changes the link with this place now.
    pub(crate) fn change(&self, link: usize, change: Change) -> Result<(), LabError> {
        self.order(Order::Change(link, change))
    }

    /// Loses the next so many requests of the client for another priority of a subflow over this link.
    pub(crate) fn lose(&self, link: usize, count: u32) -> Result<(), LabError> {
        self.order(Order::Lose(link, count))
    }

    /// What was seen since the last begin.
    pub(crate) fn report(&self) -> Result<Emulation, LabError> {
        self.ask(Order::Report)
    }

    fn ask<T>(&self, order: impl FnOnce(SyncSender<T>) -> Order) -> Result<T, LabError> {
        let (answer, wait) = mpsc::sync_channel(1);
        self.order(order(answer))?;
        wait.recv().map_err(|_| gone())
    }

    fn order(&self, order: Order) -> Result<(), LabError> {
        self.orders.send(order).map_err(|_| gone())?;
        rustix::io::write(&*self.bell, &1_u64.to_ne_bytes()).map_err(|_| gone())?;
        Ok(())
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // It fails only if the thread has ended already.
        let _ = self.order(Order::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn gone() -> LabError {
    LabError::Emulator("its thread is gone; the reason was printed above".into())
}

fn work(engine: Engine, ready: &SyncSender<std::io::Result<Room>>) {
    let room = Room::open();
    let failed = room.is_err();
    if ready.send(room).is_err() || failed {
        return;
    }
    let real_time = sched::real_time(PRIORITY).is_ok();
    if !real_time {
        // Not permitted either, most likely: then the lateness tells how well it goes without.
        let _ = sched::nice(-20);
    }
    if let Err(error) = engine.run(real_time) {
        output::say(NAME, &format!("the emulator ended: {error}"));
    }
}

/// Above everything that is not real-time, below what the kernel itself runs so.
const PRIORITY: i32 = 10;
