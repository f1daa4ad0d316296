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

mod balance;
mod config;
mod cost;
mod event;
mod greenbag;
mod lane;
mod planner;
#[cfg(test)]
mod tests;
mod thrift;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use crate::energy::{Direction, Meter};
use crate::fetch::{self, Ask, Fetch};
use crate::link::LinkId;
use crate::machine::Machine;
use crate::playback::{Player, State};
use crate::units::{Bitrate, DataSize, Instant};

pub use config::{Config, Expected, GreenBag, Minimise, Policy, Price, Radio};
pub use event::{Input, Mode, Output, Said, Viewer, Why};

use lane::Lane;
use planner::Planner;

/// The machine. See the [module](self).
#[derive(Debug)]
pub struct Stream {
    config: Config,
    now: Instant,
    fetch: Fetch,
    lanes: BTreeMap<LinkId, Lane>,
    player: Option<Player>,
    /// What follows this part of a video, and how long that plays.
    beyond: (DataSize, Duration),
    meter: Meter,
    /// Links whose bytes cost money.
    metered: BTreeSet<LinkId>,
    mode: Mode,
    planner: Planner,
    /// The end of what is cut into segments so far.
    arranged: u64,
    delivered: u64,
    /// Since when only links could be asked that rest.
    idle_since: Option<Instant>,
    wake: Option<Instant>,
    out: VecDeque<Output>,
}

/// What all links together are expected to bring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Promise {
    /// On average.
    pub rate: Bitrate,
    /// How far that may be wrong: its standard deviation.
    pub doubt: Bitrate,
}

/// Why the machine wants to be woken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {
    /// The download does.
    Fetch(fetch::Wake),
    /// One link is used alone: it is looked at whether it still suffices.
    Mode,
}

impl Stream {
    /// A stream that knows its configuration and nothing else. It waits for links.
    pub fn new(config: Config) -> Self {
        let player = config.video.clone().map(|video| Player::new(video, config.player, Instant::ZERO));
        let mut fetch = Fetch::steered(config.fetch.clone());
        fetch.lead(player.is_some());
        let mut planner = Planner::default();
        for expected in &config.expected {
            planner.expect(*expected);
            fetch.rest_link(expected.link, expected.rests);
        }
        Self {
            now: Instant::ZERO,
            fetch,
            lanes: BTreeMap::new(),
            player,
            beyond: Default::default(),
            meter: Meter::new(config.energy.clone(), Instant::ZERO),
            metered: BTreeSet::new(),
            mode: Mode::All,
            planner,
            arranged: 0,
            delivered: 0,
            idle_since: None,
            wake: None,
            out: VecDeque::new(),
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
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether a link rests, so that its radio may sleep.
    pub fn rests(&self, link: LinkId) -> bool {
        self.fetch.rests(link)
    }

    /// What was learnt of the links, for a run that goes on where this one ends.
    pub fn learnt(&self) -> Vec<Expected> {
        self.planner.learnt()
    }

    /// Links that have something to bring at present.
    pub fn busy(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.lanes.iter().filter(|(_, lane)| !lane.is_idle()).map(|(link, _)| *link)
    }

    /// What it was told to follow this part of a video.
    pub const fn beyond(&self) -> DataSize {
        self.beyond.0
    }

    /// What the radios drew, as far as the stream's own model tells.
    pub const fn meter(&self) -> &Meter {
        &self.meter
    }

    fn hear(&mut self, input: fetch::Input) {
        match &input {
            fetch::Input::LinkUp { link, profile } => {
                self.meter.on_link(self.now, *link, profile.kind);
                let spared = profile.metered && self.config.minimise == Minimise::MeteredBytes;
                if spared && self.config.policy == Policy::Marline && self.planner.begin_at_rest(*link) {
                    self.fetch.rest_link(*link, true);
                    self.out.push_back(Output::Stream(Said::Rest { link: *link, rests: true, why: Why::Cheapest }));
                }
                if profile.metered {
                    self.metered.insert(*link)
                } else {
                    self.metered.remove(link)
                };
            }
            fetch::Input::Data { req, len } => {
                if let Some(link) = self.fetch.link_of(*req) {
                    self.meter.on_bytes(self.now, link, Direction::Down, *len);
                    self.planner.on_bytes(link, *len);
                    let alpha = self.config.greenbag.alpha;
                    self.lanes.entry(link).or_default().on_bytes(self.now, *req, *len, alpha);
                }
            }
            _ => {}
        }
        self.fetch.handle(self.now, input);
    }

    /// The video is known from now on, or known better: the player goes on where it stands, with what has come.
    fn watch(&mut self, watching: Player) {
        self.player = Some(watching);
        self.arranged = self.arranged.max(self.fetch.frontier());
        self.fetch.lead(true);
    }

    fn seek(&mut self, to: u64) {
        if let Some(player) = &mut self.player {
            player.seek(self.now, to);
        }
        self.fetch.read_from(to);
        self.lanes.values_mut().for_each(Lane::clear);
        (self.arranged, self.delivered) = (to, to);
        self.fetch.tick(self.now);
    }

    /// Passes on what the download has ordered, and notes whose subsegment each request is.
    fn note(&mut self) {
        while let Some(output) = self.fetch.poll() {
            match &output {
                fetch::Output::Request { req, range: Ask::Span(span), .. } => {
                    if let Some(link) = self.fetch.link_of(*req) {
                        self.arranged = self.arranged.max(span.end);
                        self.lanes.entry(link).or_default().on_request(self.now, *req, *span);
                    }
                }
                fetch::Output::Restart => {
                    self.lanes.values_mut().for_each(Lane::clear);
                    (self.arranged, self.delivered) = (0, 0);
                    if let Some(player) = &mut self.player {
                        player.seek(self.now, 0);
                    }
                }
                _ => {}
            }
            self.out.push_back(Output::Fetch(output));
        }
        for (link, lane) in &mut self.lanes {
            lane.retain(self.now, |req| self.fetch.link_of(req) == Some(*link));
        }
    }

    fn deliver(&mut self) {
        let mut frontier = self.fetch.frontier();
        if self.config.policy == Policy::Marline {
            frontier = self.serves_upto(frontier);
        }
        if let Some(player) = &mut self.player {
            player.arrive(self.now, frontier);
        }
        if frontier > self.delivered {
            self.delivered = frontier;
            self.say(Said::Deliver { upto: frontier });
        }
    }

    fn say(&mut self, said: Said) {
        self.out.push_back(Output::Stream(said));
    }

    /// Never a stall to save energy, whoever chooses the spans: no link rests while the player waits, nor, where nobody
    /// chooses, while none of the others works. Tells whether any wakes.
    fn wake_needed(&mut self) -> bool {
        if !self.fetch.lets_rest() {
            return false;
        }
        let waits =
            self.player.as_ref().is_some_and(|player| player.state() == State::Buffering && !self.may_wait(player));
        let works = |link: LinkId| self.fetch.is_up(link) && !self.fetch.rests(link);
        // Before the first link is there, none is lost, and links come one after the other.
        let none_works = !self.fetch.is_led()
            && self.fetch.hopeful_links().next().is_some()
            && !self.fetch.hopeful_links().any(works);
        self.idle_since = none_works.then(|| self.idle_since.unwrap_or(self.now));
        let lost = self.idle_since.is_some_and(|since| self.now.since(since) >= LOOK);
        if !waits && !lost {
            return false;
        }
        let why = if waits { Why::Buffering } else { Why::Lost };
        match self.config.policy {
            Policy::Marline => drop(self.wake_all(why)),
            Policy::GreenbagP | Policy::GreenbagE => self.set_mode(Mode::All, why),
        }
        self.fetch.rest_none();
        true
    }

    /// Everything that follows from the present state.
    fn turn(&mut self) {
        self.wake = None;
        self.note();
        self.deliver();
        let woken = self.wake_needed();
        if !self.fetch.is_led() {
            if self.step() && self.config.policy == Policy::Marline && self.wake_in_time() || woken {
                self.fetch.tick(self.now);
                self.note();
            }
            self.wake = self.fetch.lets_rest().then(|| self.now + LOOK);
            return;
        }
        let ordered = match self.config.policy {
            Policy::Marline => self.plan(),
            Policy::GreenbagP | Policy::GreenbagE => self.arrange(),
        } || woken;
        if ordered {
            self.fetch.tick(self.now);
            self.note();
        }
        if self.config.policy == Policy::Marline {
            self.wake = Some(self.planner.next_step());
        } else if self.mode != Mode::All {
            self.wake = Some(self.now + LOOK);
        }
    }
}

impl Machine for Stream {
    type Input = Input;
    type Output = Output;
    type Reason = Wake;

    fn handle(&mut self, now: Instant, input: Input) {
        self.now = self.now.max(now);
        match input {
            Input::Fetch(input) => self.hear(input),
            Input::Viewer(Viewer::Seek { to }) => self.seek(to),
            Input::Viewer(Viewer::Video { video, player, position, plays }) => {
                let mut watching = Player::new(video, player, self.now);
                watching.resume(self.now, self.fetch.frontier(), position, plays);
                self.beyond = Default::default();
                self.watch(watching);
            }
            Input::Viewer(Viewer::Part { video, player, lead, position, plays, beyond, plays_on }) => {
                let mut watching = Player::new(video, player, self.now);
                watching.follow(self.now, self.fetch.frontier(), lead, position, plays);
                self.beyond = (beyond, plays_on);
                self.watch(watching);
            }
            Input::Viewer(Viewer::Stands { position, plays }) => {
                if let Some(player) = &mut self.player {
                    player.observe(self.now, position, plays);
                }
            }
        }
        self.turn();
    }

    fn tick(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.fetch.tick(self.now);
        self.turn();
    }

    fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    fn deadline(&self) -> Option<(Instant, Wake)> {
        let fetch = self.fetch.deadline().map(|(at, why)| (at, Wake::Fetch(why)));
        let own = self.wake.map(|at| (at, Wake::Mode));
        [fetch, own].into_iter().flatten().min_by_key(|(at, _)| *at)
    }
}

/// How often a link that is used alone is looked at. chosen: GreenBag asks the player from time to time (§IV-C).
const LOOK: Duration = Duration::from_millis(250);
