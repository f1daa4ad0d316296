//! One connection: its components, and how they work together at an event.
//!
//! | component | content |
//! |---|---|
//! | [`SubflowSet`] | subflows and paths, and the commands that change them |
//! | [`Traffic`] | bytes, bursts and responses |
//! | [`Polling`] | when counters are read |
//! | [`TrialState`] | trials of links |
//! | [`Explanation`] | the reason of the present decision |
//!
//! Liveness, black holes and outages are functions over these components, and the policies see them as a
//! [`PolicyInput`]. Here are the timer and the evaluation; [`super::sampling`] processes counters, and
//! [`super::reconcile`] processes decisions and their results.

use super::black_hole::BlackHoleCheck;
use super::config::Policy;
use super::event::ConnId;
use super::explanation::Explanation;
use super::host_state::HostState;
use super::links::LinkSet;
use super::policy::{self, Decision, PolicyInput, TrialState};
use super::polling::{Activity, Polling, poll_interval};
use super::subflow_set::SubflowSet;
use super::traffic::Traffic;
use super::{liveness, outage};
use crate::units::{Duration, Instant};

/// State of one connection.
#[derive(Clone, Debug)]
pub(super) struct Conn {
    pub(super) id: ConnId,
    /// It existed before the driver started.
    pub(super) adopted: bool,
    /// The link of its initial subflow (Wi-Fi in the eMPTCP paper).
    pub(super) initial_link: Option<usize>,
    pub(super) subflows: SubflowSet,
    pub(super) traffic: Traffic,
    pub(super) polling: Polling,
    pub(super) trials: TrialState,
    pub(super) explanation: Explanation,
    /// Links that are meant to carry it, by the last decision.
    pub(super) active_links: LinkSet,
    /// Time of the last change of `active_links`.
    pub(super) active_since: Instant,
    /// Its share of [`HostState::busy_bytes`].
    pub(super) counted_bytes: u64,
}

impl Conn {
    pub(super) fn new(id: ConnId, links: usize, now: Instant) -> Self {
        Self {
            id,
            adopted: false,
            initial_link: None,
            subflows: SubflowSet::new(id, links, now),
            traffic: Traffic::new(now),
            polling: Polling::new(now),
            trials: TrialState::default(),
            explanation: Explanation::new(id),
            active_links: LinkSet::EMPTY,
            active_since: now,
            counted_bytes: 0,
        }
    }

    pub(super) fn poll_interval(&self, host: &HostState) -> Duration {
        poll_interval(host, &self.subflows, self.trials.reprobe.is_some())
    }

    pub(super) fn set_activity(&mut self, host: &mut HostState, activity: Activity) {
        self.polling.set_activity(host, activity);
    }

    /// Requests the counters of all subflows from the driver.
    pub(super) fn request_poll(&mut self, host: &mut HostState) {
        let interval = self.poll_interval(host);
        self.polling.request(host, self.id, &mut self.subflows, interval);
    }

    /// Does what is due: gives up joins, retries dead paths, and polls.
    pub(super) fn on_timer(&mut self, host: &mut HostState) {
        self.expire_joins(host);
        liveness::retry_dead_paths(&mut self.subflows, host, self.polling.is_awake());
        if self.polling.is_due(host.now) {
            self.request_poll(host);
        }
    }

    /// Time of the connection's next timer.
    pub(super) fn deadline(&self, host: &HostState) -> Option<Instant> {
        // Links that should carry data but have no subflow are joined again after their back-off.
        let missing_links = self.active_links.without(self.subflows.joined_links()).intersection(host.up_links());
        let retry =
            missing_links.iter().filter_map(|index| self.subflows.path(index)).map(|path| path.join_not_before);
        let retry = retry.filter(|at| *at > host.now).min();
        let paths = liveness::deadline(&self.subflows, self.polling.is_awake());
        self.polling.deadline().into_iter().chain(paths).chain(retry).min()
    }

    /// Lets the policy decide again, and brings the connection to the decision.
    pub(super) fn reevaluate(&mut self, host: &mut HostState) {
        // The subflows of an adopted connection are reported one after another, so the decision waits for the first
        // complete poll.
        if self.subflows.all.is_empty() && self.initial_link.is_none()
            || self.adopted && self.subflows.all.iter().any(|sub| sub.polled_at.is_none())
        {
            return;
        }
        if self.adopted && self.active_links.is_empty() {
            // Whatever carries an adopted connection now is taken over as the present decision.
            self.active_links = self.subflows.carrying_links();
        }
        // Both checks come before the policy, because a path that they find dead takes no part in the decision.
        let poll_interval = self.poll_interval(host);
        let is_busy = self.polling.is_busy();
        BlackHoleCheck {
            subflows: &mut self.subflows,
            traffic: &self.traffic,
            explanation: &mut self.explanation,
            is_busy,
            is_adopted: self.adopted,
            poll_interval,
        }
        .run(host);
        liveness::check(&mut self.subflows, &self.traffic, host, is_busy);
        let decision = self.decide(host);
        let (is_running, result) = (self.trials.is_running(), self.trials.result.take());
        host.trial_cache.update(host.now, self.id, is_running, result);
        self.reconcile(host, decision);
        let carrying_links = self.subflows.carrying_links();
        if carrying_links != LinkSet::EMPTY {
            self.update_shares(host, carrying_links);
        }
    }

    /// Decides again with the configured policy.
    fn decide(&mut self, host: &HostState) -> Decision {
        let mut input = PolicyInput {
            host,
            conn: self.id,
            subflows: &mut self.subflows,
            traffic: &mut self.traffic,
            initial_link: self.initial_link,
            active_links: self.active_links,
            active_since: self.active_since,
            is_idle: !self.polling.is_busy(),
        };
        policy::decide(&mut input, &mut self.trials)
    }

    /// Processes that a link went down or came up.
    pub(super) fn on_link_change(&mut self, host: &mut HostState, index: usize, up: bool) {
        let sends_with_short_queues = self.traffic.sends_with_short_queues(&host.config);
        let is_awake = self.polling.is_awake();
        if up {
            outage::on_link_up(&mut self.subflows, host, index, is_awake);
        } else {
            outage::on_link_down(&mut self.subflows, host, index, sends_with_short_queues);
        }
        if host.config.policy == Policy::Marline {
            self.trials.cancel();
        }
        let carrying_links = self.subflows.carrying_links();
        self.update_shares(host, carrying_links);
    }
}
