//! The emulator: a thread that carries packets between the two ends of all links, and the handle that starts and
//! controls it.

mod engine;
mod lateness;
mod mp_prio;
mod report;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender, SyncSender};
use std::thread::JoinHandle;
use std::time::Duration;

use marline_sim::spec::{LinkEventKind, LinkSpec};
use marline_sys::priority;
use marline_sys::process::PidNamespace;
use marline_terminal::output;
use rustix::event::{EventfdFlags, eventfd};

use crate::network::TunPair;
use crate::{LabError, NAME};
use engine::{EmulatorCommand, Engine};
pub use lateness::Lateness;
pub use report::{EmulationReport, LinkReport, MpPrioRequest, TrafficSample};

/// Handle of the running thread. Dropping it ends the thread, and with it the PID namespace.
#[derive(Debug)]
pub(crate) struct Emulator {
    commands: Sender<EmulatorCommand>,
    wakeup: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Emulator {
    /// Starts the thread. The thread also opens the PID namespace of the lab's programs: a PID namespace ends with
    /// the thread that opened it, and this thread lives exactly as long as the lab.
    pub(crate) fn start(
        links: Vec<(LinkSpec, TunPair)>,
        events: Vec<(Duration, usize, LinkEventKind)>,
        seed: u64,
    ) -> Result<(Self, PidNamespace), LabError> {
        let (commands, receiver) = mpsc::channel();
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wakeup = Arc::new(wakeup.map_err(|e| LabError::Setup { step: "eventfd".into(), source: e.into() })?);
        let engine =
            Engine::new(links, events, seed, wakeup.clone(), receiver).map_err(LabError::at_step("emulator"))?;
        let (result_sender, result_receiver) = mpsc::sync_channel(1);
        let thread =
            std::thread::Builder::new().name("emulator".into()).spawn(move || run_thread(engine, &result_sender));
        let thread = thread.map_err(LabError::at_step("emulator's thread"))?;
        let result = result_receiver.recv().map_err(|_| LabError::Emulator("it did not start".into()))?;
        let pid_namespace = result.map_err(LabError::at_step("PID namespace"))?;
        Ok((Self { commands, wakeup, thread: Some(thread) }, pid_namespace))
    }

    /// Starts a run at this time of the clock, with fresh links and counters. Returns when they are in place.
    pub(crate) fn start_run(&self, start_time: u64) -> Result<(), LabError> {
        self.request(|done| EmulatorCommand::Start(start_time, done))
    }

    /// Applies a change to the link with this index now.
    pub(crate) fn change(&self, link: usize, change: LinkEventKind) -> Result<(), LabError> {
        self.send(EmulatorCommand::Change(link, change))
    }

    /// Drops the next `count` packets of the client that carry MP_PRIO over this link.
    pub(crate) fn lose_mp_prio(&self, link: usize, count: u32) -> Result<(), LabError> {
        self.send(EmulatorCommand::LoseMpPrio(link, count))
    }

    /// Counters since the start of the run.
    pub(crate) fn report(&self) -> Result<EmulationReport, LabError> {
        self.request(EmulatorCommand::Report)
    }

    fn request<T>(&self, command: impl FnOnce(SyncSender<T>) -> EmulatorCommand) -> Result<T, LabError> {
        let (reply, receiver) = mpsc::sync_channel(1);
        self.send(command(reply))?;
        receiver.recv().map_err(|_| thread_gone())
    }

    fn send(&self, order: EmulatorCommand) -> Result<(), LabError> {
        self.commands.send(order).map_err(|_| thread_gone())?;
        rustix::io::write(&*self.wakeup, &1_u64.to_ne_bytes()).map_err(|_| thread_gone())?;
        Ok(())
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // Sending fails only if the thread has ended already.
        let _ = self.send(EmulatorCommand::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn thread_gone() -> LabError {
    LabError::Emulator("its thread is gone; the reason was printed above".into())
}

/// Body of the thread: opens the PID namespace, raises the priority and runs the event loop.
fn run_thread(engine: Engine, result_sender: &SyncSender<std::io::Result<PidNamespace>>) {
    let pid_namespace = PidNamespace::create();
    let has_failed = pid_namespace.is_err();
    if result_sender.send(pid_namespace).is_err() || has_failed {
        return;
    }
    let real_time = priority::set_real_time(REAL_TIME_PRIORITY).is_ok();
    if !real_time {
        // Without real-time priority a better nice value helps; if that is not permitted either, the measured
        // lateness shows the effect.
        let _ = priority::set_nice(-20);
    }
    if let Err(error) = engine.run(real_time) {
        output::print_notice(NAME, &format!("the emulator ended: {error}"));
    }
}

/// Above all processes that are not real-time, below the kernel's own real-time threads.
const REAL_TIME_PRIORITY: i32 = 10;
