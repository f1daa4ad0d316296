//! Offloading alone, where the kernel leads acknowledgements by itself ([`super::steer`]).
//!
//! In: orders, and whether the second link answers. Out: the program is on while it does.
//!
//! 1. It suits where nothing but `offload` may be done, for all TCP, over one second link whose rate the user has said: the
//!    program measures nothing.
//! 2. A second link whose gateway has not answered for [`DARK`], or never yet, is not used: acknowledgements would be lost on it.
//! 3. Meanwhile it is looked up again each second: it may have another address, another router or, where a modem was plugged in
//!    again, another number. Where the primary link was plugged in again the program went with it, and is attached anew.
//! 4. A log of decisions cannot be written: nothing is decided here.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use marline_core::accel::Mechanism;
use marline_core::units::Bitrate;
use marline_net::links::list_interfaces;
use marline_sys::clock;
use rustix::net::netdevice::name_to_index;

use super::AccelError;
use super::engine::{Order, Setup};
use super::flows::Flows;
use super::ping::Pinger;
use super::road::{Road, Wanted, roads};
use super::status::{Counts, Link, Status};
use super::steer::Steer;

/// The program and who watches over it.
#[derive(Debug)]
pub(super) struct Steering {
    steer: Steer,
    pinger: Pinger,
    roads: Vec<Road>,
    up: Bitrate,
    is_dark: bool,
    asked: u64,
    answered: u64,
}

/// The second link's rate, if this is all that is needed.
pub(super) fn suits(setup: &Setup) -> Option<Bitrate> {
    let only = setup.config.mechanisms.iter().eq([Mechanism::Offload]);
    let [helper] = setup.config.helpers.as_slice() else { return None };
    helper.up.filter(|_| only && setup.trace.is_none() && setup.flows.is_all())
}

/// Attaches the program.
pub(super) fn open(setup: &Setup, up: Bitrate) -> Result<Steering, AccelError> {
    let [primary, second] = setup.roads.as_slice() else {
        return Err(AccelError::Wrong("one second link is led to, and no more".into()));
    };
    Ok(Steering {
        pinger: Pinger::open(&second.name, second.index, second.gateway)?,
        steer: Steer::attach(primary, second, up)?,
        roads: setup.roads.clone(),
        up,
        is_dark: true,
        asked: 0,
        answered: 0,
    })
}

impl Steering {
    /// Until the end is ordered.
    pub(super) fn run(mut self, orders: &Receiver<Order>) -> io::Result<()> {
        let begun = Instant::now();
        let (mut heard, mut next) = (begun, begun);
        loop {
            if Instant::now() >= next {
                self.follow();
                let is_silent = heard.elapsed() > DARK;
                if is_silent {
                    self.look_up();
                }
                next = Instant::now() + if is_silent { DARK } else { EVERY };
                // One that cannot be sent is not answered.
                let _ = self.pinger.ask((self.asked & 0xffff) as u16);
                self.asked += 1;
            }
            match orders.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(Order::Tell(to)) => {
                    // Whoever asked may have gone.
                    let _ = to.send(self.status(begun));
                }
                Ok(Order::Fetched(..)) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Order::End) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            let answers = self.pinger.answers().len() as u64;
            self.answered += answers;
            if answers > 0 {
                heard = Instant::now();
            }
            let is_dark = self.answered == 0 || heard.elapsed() > DARK;
            if is_dark != self.is_dark {
                self.is_dark = is_dark;
                self.switch().map_err(io::Error::other)?;
            }
        }
    }

    /// On while the second link is there, for the families to which it leads.
    fn switch(&mut self) -> Result<(), AccelError> {
        let families = self.roads.get(1).map(|second| second.families);
        self.steer.switch(families.filter(|_| !self.is_dark))
    }

    /// The program goes with the primary link's interface; it comes back with it.
    fn follow(&mut self) {
        let [primary, second, ..] = self.roads.as_mut_slice() else { return };
        let is_new = |index: &u32| *index != primary.index;
        let Some(index) = name_to_index(&self.pinger, &primary.name).ok().filter(is_new) else { return };
        let new = Road { index, ..primary.clone() };
        match Steer::attach(&new, second, self.up) {
            Ok(steer) => {
                (self.steer, *primary) = (steer, new);
                self.is_dark = true;
            }
            // The second one may be gone as well: tried again soon.
            Err(error) => tracing::debug!(%error, "the primary link that came back is not helped yet"),
        }
    }

    /// The second link as it is now.
    fn look_up(&mut self) {
        let Some(second) = self.roads.get_mut(1) else { return };
        let gateway = second.is_named.then_some(second.gateway);
        let wanted = [Wanted { name: second.name.clone(), gateway }];
        let found = list_interfaces().ok().and_then(|survey| roads(&survey, &wanted).ok()?.pop());
        let found = found.and_then(|road| Some((Pinger::open(&road.name, road.index, road.gateway).ok()?, road)));
        // One that cannot be used now is looked up again.
        let Some((pinger, road)) = found else { return };
        if self.steer.lead_to(&road).is_err() {
            return;
        }
        self.pinger = pinger;
        *second = Road { link: second.link, ..road };
    }

    fn status(&self, begun: Instant) -> Status {
        let counted = self.steer.counted();
        let mut links: Vec<Link> = self.roads.iter().map(|road| Link::of(road, None)).collect();
        if let Some(second) = links.get_mut(1) {
            second.dark = self.is_dark;
        }
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            up_s: begun.elapsed().as_secs_f64(),
            meant: Flows::default().to_string(),
            mechanisms: vec![Mechanism::Offload],
            driver: "bpf".to_owned(),
            links,
            flows: Vec::new(),
            counts: Counts {
                seen: counted.seen,
                sent: counted.steered,
                asked: self.asked,
                answered: self.answered,
                cpu_s: clock::thread_time().as_secs_f64(),
                ..Counts::default()
            },
        }
    }
}

/// chosen: a second link that goes dark costs the acknowledgements of a second at most.
const DARK: Duration = Duration::from_secs(1);
/// chosen: two questions may be lost.
const EVERY: Duration = Duration::from_millis(300);
