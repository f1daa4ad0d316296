//! One video over many links, by its deadlines and on little energy.
//!
//! In: what happens to the download ([`crate::fetch::Input`]) and in the player ([`Viewer`]). Out: the download's orders
//! ([`crate::fetch::Output`]), how far the player may be served, and what was decided ([`Said`]).
//!
//! 1. A stream stands on [`Fetch`] and owns one. Connections, heads, validators, portals, bans, silence and the books
//!    are the download's; the stream only chooses: which link asks for which span next, what is taken back, which links
//!    rest. The seam is a handful of orders and views (`fetch::steer`), carried out in the same turn.
//! 2. A turn: the input goes to the download; what the download orders is noted (each request is some link's
//!    subsegment) and passed on; what has come in order goes to the player's model and to the driver; then the policy
//!    gives its orders, and the download's `tick` ends the turn.
//! 3. Until the resource and the video are known the download asks by itself (the probes are the first subsegments, and
//!    the first goodput), and a server without ranges is its business altogether.
//! 4. The player is modelled ([`Player`]) from what was delivered; what a real one says of itself corrects the model.
//! 5. Bytes that a request leaves behind when its link fails are shared again before anything new is asked for.
//!
//! So one pump and one world drive it as they drive a download: an input of the download is an input of the stream, and
//! the orders come back wrapped. A second machine beside `fetch` was not written, because two thirds of it would be the
//! same; policies inside `fetch` were not either, because a player's deadlines and radios' energies are nothing that a
//! download knows.

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

/// The machine. See the [module](self).
#[derive(Debug)]
pub struct Stream {
    config: Config,
    now: Instant,
    fetch: Fetch,
    links: BTreeMap<LinkId, StreamLink>,
    player: Option<Player>,
    /// What follows this part of a video, and how long that plays.
    following: (DataSize, Duration),
    energy_meter: Meter,
    /// Links whose bytes cost money.
    metered_links: BTreeSet<LinkId>,
    mode: LinkMode,
    planner: Scheduler,
    /// The end of what is cut into segments so far.
    allocated_end: u64,
    delivered_end: u64,
    /// Since when only links could be asked that rest.
    all_standby_since: Option<Instant>,
    timer: Option<Instant>,
    outputs: VecDeque<Output>,
}

/// What all links together are expected to bring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RateForecast {
    /// On average.
    pub rate: Bitrate,
    /// How far that may be wrong: its standard deviation.
    pub std_error: Bitrate,
}

/// Why the machine wants to be woken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimerReason {
    /// The download does.
    Fetch(fetch::TimerReason),
    /// One link is used alone: it is looked at whether it still suffices.
    LinkCheck,
}

impl Stream {
    /// A stream that knows its configuration and nothing else. It waits for links.
    pub fn new(config: Config) -> Self {
        let player = config.video.clone().map(|video| Player::new(video, config.player, Instant::ZERO));
        let mut fetch = Fetch::with_external_control(config.fetch.clone());
        fetch.set_external_control(player.is_some());
        let mut planner = Scheduler::default();
        for expected in &config.initial_estimates {
            planner.add_estimate(*expected);
            fetch.set_standby(expected.link, expected.is_standby);
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
            planner,
            allocated_end: 0,
            delivered_end: 0,
            all_standby_since: None,
            timer: None,
            outputs: VecDeque::new(),
            config,
        }
    }

    /// Where the download stands.
    pub fn status(&self) -> fetch::Status {
        self.fetch.status()
    }

    /// The player as the stream sees it; none: the video is not known.
    pub const fn player(&self) -> Option<&Player> {
        self.player.as_ref()
    }

    /// Which links are used.
    pub const fn mode(&self) -> LinkMode {
        self.mode
    }

    /// Whether a link rests, so that its radio may sleep.
    pub fn is_standby(&self, link: LinkId) -> bool {
        self.fetch.is_standby(link)
    }

    /// What was learnt of the links, for a run that goes on where this one ends.
    pub fn estimates(&self) -> Vec<InitialEstimate> {
        self.planner.estimates()
    }

    /// Links that have something to bring at present.
    pub fn busy_links(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.links.iter().filter(|(_, state)| !state.is_idle()).map(|(link, _)| *link)
    }

    /// What it was told to follow this part of a video.
    pub const fn following_bytes(&self) -> DataSize {
        self.following.0
    }

    /// What the radios drew, as far as the stream's own model tells.
    pub const fn energy_meter(&self) -> &Meter {
        &self.energy_meter
    }

    fn on_fetch_input(&mut self, input: fetch::Input) {
        match &input {
            fetch::Input::LinkUp { link, profile } => {
                self.energy_meter.add_link(self.now, *link, profile.kind);
                let is_spared = profile.metered && self.config.objective == Objective::MeteredBytes;
                if is_spared && self.config.policy == Policy::Marline && self.planner.start_in_standby(*link) {
                    self.fetch.set_standby(*link, true);
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
                if let Some(link) = self.fetch.link_of(*req) {
                    self.energy_meter.on_bytes(self.now, link, Direction::Down, *len);
                    self.planner.on_bytes(link, *len);
                    let alpha = self.config.greenbag.alpha;
                    self.links.entry(link).or_default().on_bytes(self.now, *req, *len, alpha);
                }
            }
            _ => {}
        }
        self.fetch.handle(self.now, input);
    }

    /// The video is known from now on, or known better: the player goes on where it stands, with what has come.
    fn set_player(&mut self, player: Player) {
        self.player = Some(player);
        self.allocated_end = self.allocated_end.max(self.fetch.in_order_end());
        self.fetch.set_external_control(true);
    }

    fn on_seek(&mut self, to: u64) {
        if let Some(player) = &mut self.player {
            player.seek(self.now, to);
        }
        self.fetch.seek(to);
        self.links.values_mut().for_each(StreamLink::clear);
        (self.allocated_end, self.delivered_end) = (to, to);
        self.fetch.tick(self.now);
    }

    /// Passes on what the download has ordered, and notes whose subsegment each request is.
    fn forward_outputs(&mut self) {
        while let Some(output) = self.fetch.poll() {
            match &output {
                fetch::Output::Request { req, range: RequestRange::Bounded(range), .. } => {
                    if let Some(link) = self.fetch.link_of(*req) {
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
            state.retain(self.now, |req| self.fetch.link_of(req) == Some(*link));
        }
    }

    fn deliver(&mut self) {
        let mut frontier = self.fetch.in_order_end();
        if self.config.policy == Policy::Marline {
            frontier = self.delivery_limit(frontier);
        }
        if let Some(player) = &mut self.player {
            player.on_arrival(self.now, frontier);
        }
        if frontier > self.delivered_end {
            self.delivered_end = frontier;
            self.emit(StreamEvent::Deliver { end: frontier });
        }
    }

    fn emit(&mut self, event: StreamEvent) {
        self.outputs.push_back(Output::Stream(event));
    }

    /// Never a stall to save energy, whoever chooses the spans: no link rests while the player waits, nor, where nobody
    /// chooses, while none of the others works. Tells whether any wakes.
    fn activate_if_needed(&mut self) -> bool {
        if !self.fetch.has_standby_links() {
            return false;
        }
        let is_buffering = self
            .player
            .as_ref()
            .is_some_and(|player| player.state() == PlayerState::Buffering && !self.can_defer(player));
        let is_active = |link: LinkId| self.fetch.is_up(link) && !self.fetch.is_standby(link);
        // Before the first link is there, none is lost, and links come one after the other.
        let none_active = !self.fetch.is_externally_controlled()
            && self.fetch.links_in_service().next().is_some()
            && !self.fetch.links_in_service().any(is_active);
        self.all_standby_since = none_active.then(|| self.all_standby_since.unwrap_or(self.now));
        let lost = self.all_standby_since.is_some_and(|since| self.now.since(since) >= LINK_CHECK_INTERVAL);
        if !is_buffering && !lost {
            return false;
        }
        let reason = if is_buffering { ModeReason::Buffering } else { ModeReason::LinkLost };
        match self.config.policy {
            Policy::Marline => drop(self.activate_all(reason)),
            Policy::GreenbagP | Policy::GreenbagE => self.set_mode(LinkMode::All, reason),
        }
        self.fetch.activate_all();
        true
    }

    /// Everything that follows from the present state.
    fn settle(&mut self) {
        self.timer = None;
        self.forward_outputs();
        self.deliver();
        let activated = self.activate_if_needed();
        if !self.fetch.is_externally_controlled() {
            if self.sample_links() && self.config.policy == Policy::Marline && self.activate_before_control()
                || activated
            {
                self.fetch.tick(self.now);
                self.forward_outputs();
            }
            self.timer = self.fetch.has_standby_links().then(|| self.now + LINK_CHECK_INTERVAL);
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
            self.timer = Some(self.planner.next_sample_at());
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
            Input::Player(PlayerInput::Seek { offset: to }) => self.on_seek(to),
            Input::Player(PlayerInput::Video { video, player, position, is_playing: plays }) => {
                let mut new_player = Player::new(video, player, self.now);
                new_player.resume_at(self.now, self.fetch.in_order_end(), position, plays);
                self.following = Default::default();
                self.set_player(new_player);
            }
            Input::Player(PlayerInput::MediaSegment {
                video,
                player,
                lead_time: lead,
                position,
                is_playing: plays,
                following_bytes: beyond,
                following_time: plays_on,
            }) => {
                let mut new_player = Player::new(video, player, self.now);
                new_player.resume_part(self.now, self.fetch.in_order_end(), lead, position, plays);
                self.following = (beyond, plays_on);
                self.set_player(new_player);
            }
            Input::Player(PlayerInput::Position { position, is_playing: plays }) => {
                if let Some(player) = &mut self.player {
                    player.on_report(self.now, position, plays);
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

/// How often a link that is used alone is looked at. chosen: GreenBag asks the player from time to time (§IV-C).
const LINK_CHECK_INTERVAL: Duration = Duration::from_millis(250);
