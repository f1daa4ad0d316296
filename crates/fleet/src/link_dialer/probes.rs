//! Probes of failed links: which link is due, where to probe it, and what the results mean.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use marline_core::link_choice::{LinkChoice, LinkFailure, Outcome, PortalProbeResult};
use marline_core::units::Instant;
use marline_net::links::Interface;
use tokio::time::timeout;

use super::{ConnObservation, LinkDialer, classify_error};

impl LinkDialer {
    /// Waits until a link is due for a probe, and returns it.
    pub(crate) async fn next_probe(&self) -> Arc<Interface> {
        let next = |choice: &LinkChoice| choice.next_probe().into_iter().chain(choice.next_check()).min();
        self.next_due(next, LinkChoice::on_probe_started).await
    }

    /// Waits until a link is due for a portal probe, and returns it.
    pub(crate) async fn next_portal_probe(&self) -> Arc<Interface> {
        self.next_due(LinkChoice::next_portal_probe, LinkChoice::on_portal_probe_started).await
    }

    async fn next_due(
        &self,
        next: impl Fn(&LinkChoice) -> Option<(Instant, String)>,
        on_start: impl Fn(&mut LinkChoice, Instant, &str),
    ) -> Arc<Interface> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Register before the check, so that no change in between is missed.
            changed.as_mut().enable();
            let (at, now) = (next(&self.lock().choice), self.now());
            match at {
                Some((at, link)) if at <= now => {
                    on_start(&mut self.lock().choice, now, &link);
                    if let Some(link) = self.link(&link) {
                        return link;
                    }
                }
                Some((at, _)) => drop(timeout(at.since(now), changed).await),
                None => changed.await,
            }
        }
    }

    /// Notes that no relay can be reached, so that links are probed for captive portals.
    pub(crate) fn record_no_relay_reached(&self) {
        let now = self.now();
        self.lock().choice.on_unauthenticated_use(now);
        self.changed.notify_waiters();
    }

    /// Records the result of a portal probe (plain HTTP) over a link; returns whether a portal has disappeared.
    pub(crate) fn record_portal_answer(&self, link: &str, answer: PortalProbeResult) -> bool {
        let now = self.now();
        let (before, after) = {
            let choice = &mut self.lock().choice;
            let before = choice.failure(link);
            choice.on_portal_probe_result(now, link, answer);
            (before, choice.failure(link))
        };
        self.publish();
        before.is_some_and(LinkFailure::is_portal) && after.is_none()
    }

    /// Whether a captive portal responds in place of the relay on this link. Such a link is probed in any case.
    pub(crate) fn has_portal(&self, link: &str) -> bool {
        self.lock().choice.failure(link).is_some_and(LinkFailure::is_portal)
    }

    /// Records the server that a flow without a relay has reached.
    pub(crate) fn record_direct_server(&self, server: SocketAddr) {
        self.lock().last_direct_server = Some(server);
    }

    /// Where to probe this link while no relay can be reached; `None` if no server is known, or a portal would respond.
    pub(crate) fn direct_probe_target(&self, link: &str) -> Option<SocketAddr> {
        let state = self.lock();
        state.last_direct_server.filter(|_| !state.choice.failure(link).is_some_and(LinkFailure::is_portal))
    }

    /// Records the result of a probe. `is_usable`: its destination was reached over another link.
    pub(crate) fn record_probe(
        &self,
        link: &str,
        started_at: std::time::Instant,
        result: io::Result<ConnObservation>,
        is_usable: bool,
    ) {
        let failure = self.lock().choice.failure(link);
        let outcome = match result.map_err(|error| classify_error(&error)) {
            Ok(ConnObservation::MptcpDropped) => Outcome::Failed(LinkFailure::MptcpDropped),
            Ok(ConnObservation::MptcpStripped) => Outcome::Failed(LinkFailure::MptcpStripped),
            Ok(_) => Outcome::Connected(started_at.elapsed()),
            // The relay itself may be unresponsive.
            Err(_) if failure.is_none() => return,
            Err(kind) if is_usable => Outcome::Failed(kind),
            Err(LinkFailure::WrongCertificate) => Outcome::Suspected,
            Err(LinkFailure::Dns) => return,
            Err(_) if failure == Some(LinkFailure::WrongCertificate) => Outcome::Retracted,
            // A portal may also drop the probe.
            Err(_) if failure == Some(LinkFailure::Portal) => return,
            Err(kind) => Outcome::Failed(kind),
        };
        self.lock().choice.record(self.now(), link, outcome);
        self.publish();
    }
}
