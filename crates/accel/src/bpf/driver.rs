//! Driver for ACK offload alone, where a BPF program redirects ACKs in the kernel ([`super::redirect`]).
//!
//! 1. It is used where nothing but `ack-offload` is enabled, for all TCP, with one secondary link whose rate was
//!    configured: the program measures nothing.
//! 2. A secondary link whose gateway has not replied for [`DOWN_AFTER`], or never yet, is not used: acknowledgements
//!    would be lost on it.
//! 3. Meanwhile it is resolved again each second: it may have another address, another router or, where a modem was
//!    plugged in again, another index. Where the primary link was plugged in again the program went with it, and is
//!    attached again.
//! 4. There is no decision log, because nothing is decided here.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use marline_core::accel::Mechanism;
use marline_core::units::Bitrate;
use marline_net::links::list_interfaces;
use marline_sys::clock;
use rustix::net::netdevice::name_to_index;

use super::redirect::BpfRedirect;
use crate::AccelError;
use crate::engine_config::{Command, EngineConfig};
use crate::flow_filter::FlowFilter;
use crate::gateway_probe::GatewayProber;
use crate::links::{AccelLink, LinkArg, resolve_links};
use crate::status::{Counts, Link, Status};

/// The program and its supervision.
#[derive(Debug)]
pub(crate) struct BpfDriver {
    redirect: BpfRedirect,
    prober: GatewayProber,
    links: Vec<AccelLink>,
    up: Bitrate,
    is_secondary_down: bool,
    probes: u64,
    probe_replies: u64,
}

/// The rate of the secondary link, if this driver is all that is needed.
pub(crate) fn secondary_rate(setup: &EngineConfig) -> Option<Bitrate> {
    let only = setup.config.mechanisms.iter().eq([Mechanism::AckOffload]);
    let [secondary] = setup.config.secondary_links.as_slice() else { return None };
    secondary.up.filter(|_| only && setup.trace.is_none() && setup.flow_filter.is_all())
}

/// Attaches the program.
pub(crate) fn open(setup: &EngineConfig, up: Bitrate) -> Result<BpfDriver, AccelError> {
    let [primary, second] = setup.links.as_slice() else {
        return Err(AccelError::Usage("BPF offload supports exactly one secondary link".into()));
    };
    Ok(BpfDriver {
        prober: GatewayProber::open(&second.name, second.index, second.gateway)?,
        redirect: BpfRedirect::attach(primary, second, up)?,
        links: setup.links.clone(),
        up,
        is_secondary_down: true,
        probes: 0,
        probe_replies: 0,
    })
}

impl BpfDriver {
    /// Runs until it is stopped.
    pub(crate) fn run(mut self, commands: &Receiver<Command>) -> io::Result<()> {
        let begun = Instant::now();
        let (mut last_reply, mut next) = (begun, begun);
        loop {
            if Instant::now() >= next {
                self.reattach_primary();
                let is_unresponsive = last_reply.elapsed() > DOWN_AFTER;
                if is_unresponsive {
                    self.refresh_secondary();
                }
                next = Instant::now() + if is_unresponsive { DOWN_AFTER } else { PROBE_INTERVAL };
                // A probe that cannot be sent is not answered.
                let _ = self.prober.probe((self.probes & 0xffff) as u16);
                self.probes += 1;
            }
            match commands.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(Command::Status(to)) => {
                    // The requester may have gone.
                    let _ = to.send(self.status(begun));
                }
                Ok(Command::Fetched(..)) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Command::Stop) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            let answers = self.prober.take_replies().len() as u64;
            self.probe_replies += answers;
            if answers > 0 {
                last_reply = Instant::now();
            }
            let is_down = self.probe_replies == 0 || last_reply.elapsed() > DOWN_AFTER;
            if is_down != self.is_secondary_down {
                self.is_secondary_down = is_down;
                self.update_families().map_err(io::Error::other)?;
            }
        }
    }

    /// On while the secondary link is up, for the families that it reaches.
    fn update_families(&mut self) -> Result<(), AccelError> {
        let families = self.links.get(1).map(|second| second.families);
        self.redirect.set_families(families.filter(|_| !self.is_secondary_down))
    }

    /// The program disappears with the primary link's interface, and is attached again with it.
    fn reattach_primary(&mut self) {
        let [primary, second, ..] = self.links.as_mut_slice() else { return };
        let is_new = |index: &u32| *index != primary.index;
        let Some(index) = name_to_index(&self.prober, &primary.name).ok().filter(is_new) else { return };
        let new = AccelLink { index, ..primary.clone() };
        match BpfRedirect::attach(&new, second, self.up) {
            Ok(steer) => {
                (self.redirect, *primary) = (steer, new);
                self.is_secondary_down = true;
            }
            // The secondary link may be gone as well: tried again soon.
            Err(error) => tracing::debug!(%error, "the primary link that returned is not accelerated yet"),
        }
    }

    /// Resolves the secondary link again.
    fn refresh_secondary(&mut self) {
        let Some(second) = self.links.get_mut(1) else { return };
        let gateway = second.has_named_gateway.then_some(second.gateway);
        let link_args = [LinkArg { name: second.name.clone(), gateway }];
        let found = list_interfaces().ok().and_then(|survey| resolve_links(&survey, &link_args).ok()?.pop());
        let found =
            found.and_then(|link| Some((GatewayProber::open(&link.name, link.index, link.gateway).ok()?, link)));
        // A link that cannot be used now is resolved again.
        let Some((pinger, link)) = found else { return };
        if self.redirect.set_secondary(&link).is_err() {
            return;
        }
        self.prober = pinger;
        *second = AccelLink { link: second.link, ..link };
    }

    fn status(&self, begun: Instant) -> Status {
        let counters = self.redirect.counters();
        let mut links: Vec<Link> = self.links.iter().map(|link| Link::of(link, None)).collect();
        if let Some(second) = links.get_mut(1) {
            second.down = self.is_secondary_down;
        }
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: begun.elapsed().as_secs_f64(),
            flow_filter: FlowFilter::default().to_string(),
            mechanisms: vec![Mechanism::AckOffload],
            driver: "bpf".to_owned(),
            links,
            flows: Vec::new(),
            counts: Counts {
                captured: counters.acks,
                sent: counters.redirected,
                probes: self.probes,
                probe_replies: self.probe_replies,
                cpu_s: clock::thread_time().as_secs_f64(),
                ..Counts::default()
            },
        }
    }
}

/// Our choice: a secondary link that goes down costs the acknowledgements of a second at most.
const DOWN_AFTER: Duration = Duration::from_secs(1);
/// Our choice: two probes may be lost.
const PROBE_INTERVAL: Duration = Duration::from_millis(300);
