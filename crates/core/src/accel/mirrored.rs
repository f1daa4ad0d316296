//! The accelerator's part in hiding: which flows are mirrored, and the one fetcher that serves all of them.
//!
//! In: new flows, what they miss, what was fetched. Out: questions for ranges, bytes to the flow that misses them.
//!
//! 1. A flow to the port of HTTPS is not looked at. Any other is, until its first bytes say what it is.
//! 2. At most [`MIRRORED`] flows have a mirror at the same time; later ones are helped otherwise.
//! 3. Nothing is asked of the helping link's gateway but while something is wanted over it.

use alloc::vec::Vec;

use super::fetcher::Road;
use super::flow::Flow;
use super::{Accelerator, Bytes, FetchId, Key, Mechanism, Sight};
use crate::units::Instant;

impl Accelerator {
    /// A new flow may be plain HTTP: it is looked at until that is known.
    pub(super) fn mirror(&mut self, key: Key) {
        let is_on = self.config.mechanisms.has_any(&MIRRORING);
        if !is_on || key.destination_port == HTTPS || self.mirrored.len() >= MIRRORED {
            return;
        }
        if let Some(flow) = self.flows.get_mut(&key).filter(|flow| flow.hiding().is_none()) {
            let woken = flow.deadline();
            self.numbers += 1;
            flow.mirror(self.now, self.numbers);
            self.mirrored.insert(self.numbers, (key, Sight::Whole));
            self.after(key, woken);
        }
        self.watch();
    }

    /// What is left to do for a flow after anything that concerned it. `woken`: when it wanted to be woken before.
    pub(super) fn after(&mut self, key: Key, woken: Option<Instant>) {
        let (now, mut is_wanted) = (self.now, false);
        if let Some(flow) = self.flows.get_mut(&key).filter(|flow| flow.hiding().is_some()) {
            for want in flow.wants(now, &mut self.outputs) {
                self.fetcher.want(now, want);
                is_wanted = true;
            }
            if let Some(hiding) = flow.hiding()
                && let Some((_, sight)) = self.mirrored.get_mut(&hiding.number())
                && *sight != hiding.sight()
            {
                *sight = hiding.sight();
                self.watch();
            }
        }
        self.rearm(key, woken);
        if is_wanted {
            self.helpers.want(now);
            self.fetch();
        }
    }

    /// Asks for missing bytes that are due.
    pub(super) fn fetch(&mut self) {
        let mut roads: Vec<Road> = self.helpers.roads(self.now).collect();
        let (link, is_dark) = (self.config.primary, self.detector.is_dark());
        roads.push(Road { link, is_primary: true, is_dark, down: None, rtt: self.detector.rtt() });
        self.fetcher.set_roads(&roads);
        let (flows, mirrored) = (&self.flows, &self.mirrored);
        self.fetcher.tick(self.now, |number, stretch| {
            let flow = mirrored.get(&number).and_then(|(key, _)| flows.get(key));
            flow.and_then(Flow::hiding).map(|hiding| hiding.missing(stretch)).unwrap_or_default()
        });
        self.outputs.extend(self.fetcher.outputs());
    }

    pub(super) fn on_fetched(&mut self, fetch: FetchId, range: u32, bytes: Option<Bytes>) {
        let got = self.fetcher.fetched(self.now, fetch, range, bytes.map(|bytes| bytes.0));
        let key = got.as_ref().and_then(|got| self.mirrored.get(&got.flow)).map(|(key, _)| *key);
        if let (Some(got), Some(key)) = (got, key)
            && let Some(flow) = self.flows.get_mut(&key)
        {
            let woken = flow.deadline();
            flow.on_fetched(self.now, got.start, got.bytes, &mut self.outputs);
            self.after(key, woken);
        }
        self.fetch();
    }
}

/// What needs to know where bytes can be had.
const MIRRORING: [Mechanism; 3] = [Mechanism::Hide, Mechanism::LateHide, Mechanism::FreezeFlight];
/// IANA's.
const HTTPS: u16 = 443;
/// chosen: more downloads than one host runs; each keeps some tens of kilobytes at the most.
const MIRRORED: usize = 64;
