//! Driver of random histories: applies random network events to a download machine.
//!
//! It executes a [`FaultPlan`] on the machine and returns how the download ended, or the first defect that the
//! [`ReferenceModel`] found.
//!
//! There is no TCP here: a connection delivers pieces of random size at random times, and any step can fail. This
//! reaches more states in a second than [`crate::http_sim`] does in an hour.

mod conns;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use marline_core::fetch::{ConnError, ConnErrorKind, ConnId, Input, Output, Policy};
use marline_core::link::{LinkId, LinkKind, LinkProfile};
use marline_core::machine::Machine;
use marline_core::stream::{self, PlayerInput, StreamEvent};
use marline_core::units::{DataSize, Duration, Instant};

use super::fault_plan::FaultPlan;
use super::random_player::{PlayerAction, RandomPlayer};
use super::reference::ReferenceModel;
use super::stream_invariants::StreamSnapshot;
use super::subject::Subject;
use crate::contract::ContractChecker;
use crate::rng::RandomStream;
use conns::{Conn, PendingResponse};

/// One random history in progress.
pub(super) struct Driver<M: Subject> {
    pub(super) machine: ContractChecker<M::Config, M>,
    fault_plan: FaultPlan,
    rng: RandomStream,
    now: Instant,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    event_count: u64,
    conns: BTreeMap<ConnId, Conn>,
    link_present: Vec<bool>,
    served_bytes: DataSize,
    pub(super) reference: ReferenceModel,
    consumed_end: u64,
    player: Option<RandomPlayer>,
    pub(super) result: Option<Result<(), String>>,
    pub(super) steps: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    ConnStep(ConnId),
    LinkFlap(usize),
    Consume,
    /// The player reads deliverable bytes.
    PlayerRead,
    /// The player seeks, pauses, or sends another input.
    PlayerAction,
}

impl<M: Subject> Driver<M> {
    pub(super) fn new(
        fault_plan: FaultPlan,
        rng: RandomStream,
        machine: ContractChecker<M::Config, M>,
        player: Option<RandomPlayer>,
    ) -> Self {
        let mut reference = ReferenceModel::default();
        if let Some(resume) = &fault_plan.config.resume {
            reference.resume(resume.total, &resume.ranges);
        }
        Self {
            machine,
            link_present: vec![false; fault_plan.links.len()],
            fault_plan,
            rng,
            now: Instant::ZERO,
            events: BinaryHeap::new(),
            event_count: 0,
            conns: BTreeMap::new(),
            served_bytes: DataSize::ZERO,
            reference,
            consumed_end: 0,
            player,
            result: None,
            steps: 0,
        }
    }

    /// Runs until the machine reports `Done` or `Failed`, or `limit` has passed.
    pub(super) fn run(&mut self, limit: Duration) -> Result<Duration, String> {
        for link in 0..self.fault_plan.links.len() {
            self.bring_link_up(link)?;
            self.schedule_flap(link);
        }
        self.schedule_action();
        self.set_window_end(0);
        while self.result.is_none() {
            let event = self.events.peek().map(|Reverse((at, ..))| *at);
            let deadline = self.machine.deadline().map(|(at, _)| at);
            let Some(next) = [event, deadline].into_iter().flatten().min() else {
                return Err("no event is queued and the machine has no deadline".to_string());
            };
            if next > Instant::ZERO + limit {
                return Err(format!(
                    "not finished after {limit:?}, {} bytes covered",
                    self.reference.covered().bytes()
                ));
            }
            self.steps += 1;
            if self.steps > MAX_STEPS {
                return Err(format!("not finished after {MAX_STEPS} steps, at {}", self.now));
            }
            self.now = self.now.max(next);
            if deadline.is_some_and(|at| at <= self.now) {
                self.machine.tick(self.now);
                self.drain()?;
            } else if let Some(Reverse((_, _, event))) = self.events.pop() {
                self.handle_event(event)?;
            }
        }
        Ok(self.now.since(Instant::ZERO))
    }

    fn handle_event(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::ConnStep(conn) => self.step_conn(conn),
            Event::LinkFlap(link) if self.link_present[link] => {
                self.link_present[link] = false;
                self.schedule_flap(link);
                self.feed(Input::LinkDown { link: LinkId(link as u16) })
            }
            Event::LinkFlap(link) => {
                self.schedule_flap(link);
                self.bring_link_up(link)
            }
            Event::Consume => {
                self.consumed_end = self.reference.in_order_end();
                self.feed(Input::Consumed { end: self.consumed_end })
            }
            Event::PlayerRead => self.run_player_read(),
            Event::PlayerAction => self.run_player_action(),
        }
    }

    fn schedule_action(&mut self) {
        if let Some(delay) = self.player.as_mut().and_then(RandomPlayer::next_action_delay) {
            self.schedule(delay, Event::PlayerAction);
        }
    }

    fn run_player_action(&mut self) -> Result<(), String> {
        self.schedule_action();
        let player_model = self.machine.machine().stream().and_then(|stream| stream.player());
        let Some(player) = &mut self.player else { return Ok(()) };
        match player.next_action(player_model) {
            PlayerAction::Pause(time) => {
                player.paused_until = self.now + time;
                Ok(())
            }
            PlayerAction::Input(player_input) => {
                if let PlayerInput::Seek { offset: to } = player_input {
                    player.seek_to(to);
                    self.reference.seek(to);
                    self.set_window_end(to);
                }
                let Some(input) = M::player_input(player_input) else { return Ok(()) };
                self.machine.handle(self.now, input);
                self.drain()?;
                self.wake_all_conns();
                Ok(())
            }
        }
    }

    fn run_player_read(&mut self) -> Result<(), String> {
        let Some(player) = &mut self.player else { return Ok(()) };
        player.read_scheduled = false;
        if self.now < player.paused_until {
            let delay = player.paused_until.since(self.now);
            self.schedule_read(delay);
            return Ok(());
        }
        if player.read_end == player.readable_end {
            return Ok(());
        }
        let delay = player.read();
        let (read_end, has_more) = (player.read_end, player.read_end < player.readable_end);
        if has_more {
            self.schedule_read(delay);
        }
        if self.reader_window().is_none() {
            return Ok(());
        }
        self.set_window_end(read_end);
        self.wake_all_conns();
        self.feed(Input::Consumed { end: read_end })
    }

    /// The read window has moved, so connections with withheld data may continue.
    fn wake_all_conns(&mut self) {
        let conns: Vec<ConnId> = self.conns.keys().copied().collect();
        conns.into_iter().for_each(|conn| self.schedule_step(conn, false));
    }

    fn schedule_read(&mut self, delay: Duration) {
        let Some(player) = &mut self.player else { return };
        if !std::mem::replace(&mut player.read_scheduled, true) {
            self.schedule(delay, Event::PlayerRead);
        }
    }

    /// Moves the read window after the reader has consumed everything before `read_end`.
    fn set_window_end(&mut self, read_end: u64) {
        if let (Some(_), Some(window)) = (&self.player, self.reader_window()) {
            self.reference.set_request_limit(read_end.saturating_add(window.bytes()));
        }
    }

    fn reader_window(&self) -> Option<DataSize> {
        self.fault_plan.config.reader_window
    }

    fn bring_link_up(&mut self, link: usize) -> Result<(), String> {
        self.link_present[link] = true;
        let profile = match &self.player {
            Some(player) => player.link_profile(link),
            None => LinkProfile::new(&format!("link{link}"), LinkKind::Other),
        };
        self.feed(Input::LinkUp { link: LinkId(link as u16), profile })
    }

    fn schedule(&mut self, delay: Duration, event: Event) {
        self.event_count += 1;
        self.events.push(Reverse((self.now + delay, self.event_count, event)));
    }

    fn schedule_flap(&mut self, link: usize) {
        if let Some(mean) = self.fault_plan.links[link].flap_interval {
            let delay = self.random_duration(mean * 2);
            self.schedule(delay, Event::LinkFlap(link));
        }
    }

    /// A random time below `limit`.
    fn random_duration(&mut self, limit: Duration) -> Duration {
        Duration::from_nanos(self.rng.below(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX).max(1)))
    }

    fn feed(&mut self, input: Input) -> Result<(), String> {
        self.reference.on_input(&input)?;
        self.machine.handle(self.now, input.into());
        self.drain()
    }

    fn drain(&mut self) -> Result<(), String> {
        let mut unreachable = Vec::new();
        while let Some(output) = self.machine.poll() {
            match output.into() {
                stream::Output::Fetch(output) => {
                    self.reference.on_output(&output).map_err(|defect| format!("at {}: {defect}", self.now))?;
                    self.execute(output, &mut unreachable);
                }
                stream::Output::Stream(StreamEvent::Deliver { end }) => {
                    self.reference.on_deliver(end).map_err(|defect| format!("at {}: {defect}", self.now))?;
                    if let Some(player) = &mut self.player {
                        player.readable_end = end;
                        self.schedule_read(Duration::ZERO);
                    }
                }
                stream::Output::Stream(_) => {}
            }
        }
        self.check_stream().map_err(|defect| format!("at {}: {defect}", self.now))?;
        for conn in unreachable {
            self.feed(closed_input(conn, ConnErrorKind::Unreachable))?;
        }
        Ok(())
    }

    fn execute(&mut self, output: Output, unreachable: &mut Vec<ConnId>) {
        match output {
            Output::Connect { conn, link, .. } => {
                let link = usize::from(link.0);
                if !self.link_present[link] {
                    return unreachable.push(conn);
                }
                let (is_open, step_scheduled, is_unresponsive) = (false, true, false);
                let (response_count, last_chunk, responses) = (0, 0, VecDeque::new());
                self.conns.insert(
                    conn,
                    Conn { link, is_open, step_scheduled, is_unresponsive, response_count, last_chunk, responses },
                );
                self.schedule(self.fault_plan.links[link].rtt, Event::ConnStep(conn));
            }
            Output::Request { req, conn, range, if_range } => {
                let (body, remaining, accepted, closes_connection) = (None, None, false, false);
                if let Some(conn_state) = self.conns.get_mut(&conn) {
                    if let Some(player) = &mut self.player {
                        player.invariants.on_request(LinkId(conn_state.link as u16));
                    }
                    conn_state.responses.push_back(PendingResponse {
                        req,
                        range,
                        if_range,
                        remaining_body: body,
                        remaining_accepted: remaining,
                        is_accepted: accepted,
                        closes_connection,
                    });
                    self.schedule_step(conn, true);
                }
            }
            Output::AcceptBody { req, len, .. } => {
                let mut responses =
                    self.conns.iter_mut().flat_map(|(id, conn)| conn.responses.iter_mut().map(|p| (*id, p)));
                if let Some((conn, pending)) = responses.find(|(_, pending)| pending.req == req) {
                    pending.is_accepted = true;
                    pending.remaining_accepted = len.map(DataSize::bytes);
                    self.schedule_step(conn, false);
                }
            }
            Output::Cancel { req } => {
                for conn in self.conns.values_mut() {
                    conn.responses.retain(|pending| pending.req != req);
                }
            }
            Output::Close { conn } => {
                self.conns.remove(&conn);
            }
            Output::Restart => {
                self.consumed_end = 0;
                if let Some(player) = &mut self.player {
                    player.seek_to(0);
                }
                self.set_window_end(0);
            }
            Output::Done => {
                let sizes: Vec<DataSize> =
                    self.fault_plan.server.versions.iter().map(|version| version.size).collect();
                let accepts_any_page = self.fault_plan.config.policy == Policy::Single;
                self.result = Some(self.reference.on_done(&sizes, accepts_any_page));
            }
            Output::Failed(failure) => self.result = Some(Err(format!("failed: {failure}"))),
            Output::Verify { .. } => {}
            Output::Notice(notice) => {
                if let Some(player) = &mut self.player {
                    player.invariants.on_notice(&notice);
                }
            }
            Output::Identified { .. } => {}
        }
    }

    fn check_stream(&mut self) -> Result<(), String> {
        let (Some(stream), Some(player)) = (self.machine.machine().stream(), &mut self.player) else {
            return Ok(());
        };
        let has_work = |conn: &&Conn| !conn.is_open || !conn.responses.is_empty();
        player.invariants.check(&StreamSnapshot {
            now: self.now,
            stream,
            reference: &self.reference,
            links: &self.fault_plan.links,
            busy_links: self.conns.values().filter(has_work).map(|conn| conn.link).collect(),
            result: self.result.as_ref(),
        })
    }

    /// End of the reader's window: no data beyond it may be delivered.
    fn window_end(&self) -> u64 {
        let player = self.player.as_ref();
        let limit =
            player.zip(self.reader_window()).map(|(player, window)| player.read_end.saturating_add(window.bytes()));
        limit.unwrap_or(u64::MAX)
    }
}

fn closed_input(conn: ConnId, kind: ConnErrorKind) -> Input {
    Input::Closed { conn, error: ConnError { kind, text: format!("{kind:?}") } }
}

/// More steps than any history with progress needs.
const MAX_STEPS: u32 = 1_000_000;
