//! Streaming of one video over several links: meets the player's deadlines and spends little energy.
//!
//! Inputs are what happens to the download ([`crate::fetch::Input`]) and in the player ([`PlayerInput`]). Outputs are
//! the download's commands ([`crate::fetch::Output`]), how much may be delivered to the player, and reports about the
//! links in use ([`StreamEvent`]).
//!
//! 1. A stream owns a [`Fetch`] machine. Connections, response heads, validators, captive portals, bans, stalls and
//!    coverage belong to the download. The stream only chooses which link requests which range next, which requests are
//!    canceled, and which links are on standby. It controls the download through a handful of methods
//!    (`fetch::external_control`), which take effect in the same turn.
//! 2. One turn: the input goes to the download; the download's outputs are noted (each request is a subsegment of some
//!    link) and forwarded; bytes that have arrived in order go to the player model and to the driver; then the policy
//!    gives its commands, and the download's `tick` ends the turn.
//! 3. Until the resource and the video are known, the download schedules its requests itself. Its first requests also
//!    serve as the first subsegments and give the first goodput. A server without range support is left to the download
//!    altogether.
//! 4. The player is modeled ([`Player`]) from what was delivered. Reports of a real player correct the model.
//! 5. Bytes left behind by a failed link are divided again before anything new is requested.
//!
//! The same driver and the same simulated world run a stream and a download: the download's inputs are inputs of the
//! stream, and its outputs come back wrapped. A second machine beside `fetch` was rejected because two thirds of it
//! would be the same code. Policies inside `fetch` were rejected because a download knows nothing of a player's
//! deadlines and of the energy that radios use.
//!
//! `scheduler` is marline's policy; `newsvendor` decides for it whether the costly link goes on standby, and `objective`
//! gives the cost of a byte. `greenbag` is GreenBag's policy, and `load_balancer` divides segments for it. `link` has the
//! outstanding ranges and the goodput of each link.

mod config;
mod event;
mod greenbag;
mod link;
mod load_balancer;
mod newsvendor;
mod objective;
mod scheduler;
#[cfg(test)]
mod tests;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use crate::energy::{Direction, Meter};
use crate::fetch::{self, Fetch, RequestRange};
use crate::link::LinkId;
use crate::machine::Machine;
use crate::playback::{Player, PlayerState};
use crate::units::{Bitrate, DataSize, Instant};

pub use config::{Config, GreenBagParams, GreenBagRadio, InitialEstimate, LinkPrice, Objective, Policy};
pub use event::{Input, LinkMode, ModeReason, Output, PlayerInput, StreamEvent};

use link::StreamLink;
use scheduler::Scheduler;

/// State machine of one video stream; see the [module documentation](self).
#[derive(Debug)]
pub struct Stream {
    config: Config,
    now: Instant,
    fetch: Fetch,
    links: BTreeMap<LinkId, StreamLink>,
    player: Option<Player>,
    /// Size and playing time of the video parts that follow this one.
    following: (DataSize, Duration),
    energy_meter: Meter,
    /// Links whose bytes cost money.
    metered_links: BTreeSet<LinkId>,
    mode: LinkMode,
    scheduler: Scheduler,
    /// End of the bytes that have been divided into segments so far.
    allocated_end: u64,
    delivered_end: u64,
    /// Since when no link in service is active, because those that are not on standby are down.
    all_standby_since: Option<Instant>,
    timer: Option<Instant>,
    outputs: VecDeque<Output>,
}

/// Total rate that all links together are expected to deliver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RateForecast {
    /// Mean rate.
    pub rate: Bitrate,
    /// Standard error of the mean rate.
    pub std_error: Bitrate,
}

/// Reason for the next timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimerReason {
    /// The download's own timer.
    Fetch(fetch::TimerReason),
    /// Some links are on standby: check whether the active ones still suffice.
    LinkCheck,
}

impl Stream {
    /// Creates a stream that knows only its configuration. It does nothing until a link comes up.
    pub fn new(config: Config) -> Self {
        let player = config.video.clone().map(|video| Player::new(video, config.player, Instant::ZERO));
        let mut fetch = Fetch::with_external_control(config.fetch.clone());
        fetch.transfers_mut().set_external_control(player.is_some());
        let mut scheduler = Scheduler::default();
        for expected in &config.initial_estimates {
            scheduler.add_estimate(*expected);
            fetch.transfers_mut().set_standby(expected.link, expected.is_standby);
        }
        Self {
            now: Instant::ZERO,
            fetch,
            links: BTreeMap::new(),
            player,
            following: Default::default(),
            energy_meter: Meter::new(config.energy.clone(), Instant::ZERO),
            metered_links: BTreeSet::new(),
            mode: LinkMode::All,
            scheduler,
            allocated_end: 0,
            delivered_end: 0,
            all_standby_since: None,
            timer: None,
            outputs: VecDeque::new(),
            config,
        }
    }

    /// State of the download underneath.
    pub fn status(&self) -> fetch::Status {
        self.fetch.status()
    }

    /// The player model, or `None` while the video is unknown.
    pub const fn player(&self) -> Option<&Player> {
        self.player.as_ref()
    }

    /// The link mode that GreenBag's policies choose; always [`LinkMode::All`] with [`Policy::Marline`].
    pub const fn mode(&self) -> LinkMode {
        self.mode
    }

    /// Whether a link is on standby, so that its radio may sleep.
    pub fn is_standby(&self, link: LinkId) -> bool {
        self.fetch.transfers().is_standby(link)
    }

    /// What was learnt about the links, to be passed to a later stream as [`Config::initial_estimates`].
    pub fn estimates(&self) -> Vec<InitialEstimate> {
        self.scheduler.estimates()
    }

    /// Links with requested or reserved bytes outstanding.
    pub fn busy_links(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.links.iter().filter(|(_, state)| !state.is_idle()).map(|(link, _)| *link)
    }

    /// Number of bytes that follow this part of the video, as the driver reported it.
    pub const fn following_bytes(&self) -> DataSize {
        self.following.0
    }

    /// Energy that the radios have used, by the stream's own radio models.
    pub const fn energy_meter(&self) -> &Meter {
        &self.energy_meter
    }

    fn on_fetch_input(&mut self, input: fetch::Input) {
        match &input {
            fetch::Input::LinkUp { link, profile } => {
                self.energy_meter.add_link(self.now, *link, profile.kind);
                let is_spared = profile.metered && self.config.objective == Objective::MeteredBytes;
                if is_spared && self.config.policy == Policy::Marline && self.scheduler.start_in_standby(*link) {
                    self.fetch.transfers_mut().set_standby(*link, true);
                    self.outputs.push_back(Output::Stream(StreamEvent::Standby {
                        link: *link,
                        standby: true,
                        reason: ModeReason::Cheapest,
                    }));
                }
                if profile.metered {
                    self.metered_links.insert(*link)
                } else {
                    self.metered_links.remove(link)
                };
            }
            fetch::Input::Data { req, len } => {
                if let Some(link) = self.fetch.transfers().link_of(*req) {
                    self.energy_meter.on_bytes(self.now, link, Direction::Down, *len);
                    self.scheduler.on_bytes(link, *len);
                    let alpha = self.config.greenbag.alpha;
                    self.links.entry(link).or_default().on_bytes(self.now, *req, *len, alpha);
                }
            }
            _ => {}
        }
        self.fetch.handle(self.now, input);
    }

    /// Sets or replaces the player model when the video becomes known or better known. Playback continues at its
    /// current position with the bytes that have arrived.
    fn set_player(&mut self, player: Player) {
        self.player = Some(player);
        self.allocated_end = self.allocated_end.max(self.fetch.transfers().in_order_end());
        self.fetch.transfers_mut().set_external_control(true);
    }

    fn on_seek(&mut self, to: u64) {
        if let Some(player) = &mut self.player {
            player.seek(self.now, to);
        }
        self.fetch.transfers_mut().seek(to);
        self.links.values_mut().for_each(StreamLink::clear);
        (self.allocated_end, self.delivered_end) = (to, to);
        self.fetch.tick(self.now);
    }

    /// Forwards the download's outputs and notes which link each request belongs to.
    fn forward_outputs(&mut self) {
        while let Some(output) = self.fetch.poll() {
            match &output {
                fetch::Output::Request { req, range: RequestRange::Bounded(range), .. } => {
                    if let Some(link) = self.fetch.transfers().link_of(*req) {
                        self.allocated_end = self.allocated_end.max(range.end);
                        self.links.entry(link).or_default().on_request(self.now, *req, *range);
                    }
                }
                fetch::Output::Restart => {
                    self.links.values_mut().for_each(StreamLink::clear);
                    (self.allocated_end, self.delivered_end) = (0, 0);
                    if let Some(player) = &mut self.player {
                        player.seek(self.now, 0);
                    }
                }
                _ => {}
            }
            self.outputs.push_back(Output::Fetch(output));
        }
        for (link, state) in &mut self.links {
            state.retain(self.now, |req| self.fetch.transfers().link_of(req) == Some(*link));
        }
    }

    fn deliver(&mut self) {
        let mut in_order_end = self.fetch.transfers().in_order_end();
        if self.config.policy == Policy::Marline {
            in_order_end = self.delivery_limit(in_order_end);
        }
        if let Some(player) = &mut self.player {
            player.on_arrival(self.now, in_order_end);
        }
        if in_order_end > self.delivered_end {
            self.delivered_end = in_order_end;
            self.emit(StreamEvent::Deliver { end: in_order_end });
        }
    }

    fn emit(&mut self, event: StreamEvent) {
        self.outputs.push_back(Output::Stream(event));
    }

    /// Activates links when saving energy would cause a stall; returns whether any link was activated.
    ///
    /// This rule holds under both schedulers, the download's own and the policy's. While the player is buffering, no
    /// link stays on standby. While the download schedules by itself, standby links are also activated if every other
    /// link is down.
    fn activate_if_needed(&mut self) -> bool {
        if !self.fetch.transfers().has_standby_links() {
            return false;
        }
        let is_buffering = self
            .player
            .as_ref()
            .is_some_and(|player| player.state() == PlayerState::Buffering && !self.can_defer(player));
        let is_active =
            |link: LinkId| self.fetch.transfers().is_up(link) && !self.fetch.transfers().is_standby(link);
        // At the start links come up one after the other. Before the first one is up, none counts as lost.
        let none_active = !self.fetch.transfers().is_externally_controlled()
            && self.fetch.transfers().links_in_service().next().is_some()
            && !self.fetch.transfers().links_in_service().any(is_active);
        self.all_standby_since = none_active.then(|| self.all_standby_since.unwrap_or(self.now));
        let all_links_lost =
            self.all_standby_since.is_some_and(|since| self.now.since(since) >= LINK_CHECK_INTERVAL);
        if !is_buffering && !all_links_lost {
            return false;
        }
        let reason = if is_buffering { ModeReason::Buffering } else { ModeReason::LinkLost };
        match self.config.policy {
            Policy::Marline => drop(self.activate_all(reason)),
            Policy::GreenbagP | Policy::GreenbagE => self.set_mode(LinkMode::All, reason),
        }
        self.fetch.transfers_mut().activate_all();
        true
    }

    /// Brings everything up to date with the present state: forwards outputs, delivers bytes, runs the policy, sets the
    /// timer.
    fn settle(&mut self) {
        self.timer = None;
        self.forward_outputs();
        self.deliver();
        let activated = self.activate_if_needed();
        // Without external control the download schedules its own requests; only the standby rules apply.
        if !self.fetch.transfers().is_externally_controlled() {
            if self.sample_links() && self.config.policy == Policy::Marline && self.activate_before_control()
                || activated
            {
                self.fetch.tick(self.now);
                self.forward_outputs();
            }
            self.timer = self.fetch.transfers().has_standby_links().then(|| self.now + LINK_CHECK_INTERVAL);
            return;
        }
        let changed = match self.config.policy {
            Policy::Marline => self.schedule(),
            Policy::GreenbagP | Policy::GreenbagE => self.schedule_greenbag(),
        } || activated;
        if changed {
            self.fetch.tick(self.now);
            self.forward_outputs();
        }
        if self.config.policy == Policy::Marline {
            self.timer = Some(self.scheduler.next_sample_at());
        } else if self.mode != LinkMode::All {
            self.timer = Some(self.now + LINK_CHECK_INTERVAL);
        }
    }
}

impl Machine for Stream {
    type Input = Input;
    type Output = Output;
    type Reason = TimerReason;

    fn handle(&mut self, now: Instant, input: Input) {
        self.now = self.now.max(now);
        match input {
            Input::Fetch(input) => self.on_fetch_input(input),
            Input::Player(PlayerInput::Seek { offset }) => self.on_seek(offset),
            Input::Player(PlayerInput::Video { video, player, position, is_playing }) => {
                let mut new_player = Player::new(video, player, self.now);
                new_player.resume_at(self.now, self.fetch.transfers().in_order_end(), position, is_playing);
                self.following = Default::default();
                self.set_player(new_player);
            }
            Input::Player(PlayerInput::MediaSegment {
                video,
                player,
                lead_time,
                position,
                is_playing,
                following_bytes,
                following_time,
            }) => {
                let mut new_player = Player::new(video, player, self.now);
                new_player.resume_part(
                    self.now,
                    self.fetch.transfers().in_order_end(),
                    lead_time,
                    position,
                    is_playing,
                );
                self.following = (following_bytes, following_time);
                self.set_player(new_player);
            }
            Input::Player(PlayerInput::Position { position, is_playing }) => {
                if let Some(player) = &mut self.player {
                    player.on_report(self.now, position, is_playing);
                }
            }
        }
        self.settle();
    }

    fn tick(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.fetch.tick(self.now);
        self.settle();
    }

    fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<(Instant, TimerReason)> {
        let fetch = self.fetch.deadline().map(|(at, reason)| (at, TimerReason::Fetch(reason)));
        let timer = self.timer.map(|at| (at, TimerReason::LinkCheck));
        [fetch, timer].into_iter().flatten().min_by_key(|(at, _)| *at)
    }
}

/// How often the active links are checked while others are on standby, and how long none may be active before all are
/// activated. Our choice: GreenBag polls the player periodically (§IV-C) without giving an interval.
const LINK_CHECK_INTERVAL: Duration = Duration::from_millis(250);
