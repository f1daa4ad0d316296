//! Between a session's player and the stream that fills its window: each hears of the other.
//!
//! In: how a transfer goes, what its stream decides. Out: what the stream should know of the player; the session's
//! status; events; what every link has carried.
//!
//! Of several answers of one session the newest speaks for the player: players open one where they read on.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use marline_core::link::LinkId;
use marline_core::stream::{InitialEstimate, LinkMode, ModeReason, PlayerInput, Stream, StreamEvent};
use marline_core::units::{DataSize, Instant};
use marline_download::{Audience, Network, Progress, Watcher};
use serde_json::json;

use super::choice::Choice;
use super::events::Events;
use super::hold::Verdict;
use super::probe;
use super::radios::Radios;
use super::series::Part;
use super::session::{Segment, Session, Sessions};
use super::watching::Standing;

/// What the stream of the present answer has decided.
#[derive(Clone, Debug, Default)]
pub(super) struct Decided {
    /// Links that rest.
    pub(super) rests: Vec<String>,
    /// The last change.
    pub(super) why: Option<&'static str>,
    /// How often a lagging link was relieved.
    pub(super) recovered: u32,
    /// The player is held back from its first picture.
    pub(super) held: Option<Verdict>,
}

/// A wait that is shorter is told nobody.
const WORTH_A_WORD: Duration = Duration::from_secs(1);

/// Hears how a transfer goes.
pub(super) struct Ear {
    id: u64,
    /// It is a segment of what a player plays.
    part: Option<Segment>,
    /// Links on which something is under way for it.
    busy: BTreeSet<String>,
    /// How many bytes may wait for the player.
    window: DataSize,
    session: Rc<Session>,
    radios: Rc<RefCell<Radios>>,
    network: Rc<Network>,
    /// What is counted already of each link.
    carried: BTreeMap<String, u64>,
    /// No link brings anything, and none is expected to soon.
    hopeless: Rc<Cell<bool>>,
    events: Rc<Events>,
    choice: Rc<RefCell<Choice>>,
}

impl Ear {
    pub(super) fn new(
        id: u64,
        from: u64,
        sessions: &Sessions,
        session: &Rc<Session>,
        window: DataSize,
        hopeless: Rc<Cell<bool>>,
    ) -> Self {
        Self {
            id,
            part: session.part(from),
            busy: BTreeSet::new(),
            window,
            session: Rc::clone(session),
            radios: Rc::clone(&sessions.radios),
            network: Rc::clone(&sessions.network),
            carried: BTreeMap::new(),
            hopeless,
            events: Rc::clone(&sessions.events),
            choice: Rc::clone(&sessions.choice),
        }
    }
}

impl Ear {
    /// Whether the player goes on waiting for its first picture.
    fn hold(&self, stream: &Stream) {
        let Some(verdict) = self.session.judge(self.id, stream.rate_forecast(), self.window) else { return };
        let first = match verdict {
            Verdict::Waits { waited, .. } if waited < WORTH_A_WORD => return,
            Verdict::Waits { .. } => self.session.decided.borrow_mut().held.replace(verdict.clone()).is_none(),
            Verdict::Starts(_) if self.session.decided.borrow_mut().held.take().is_none() => return,
            Verdict::Starts(_) => true,
        };
        let line = verdict.to_string();
        if first {
            self.events.tell(&json!({"event": "hold", "session": self.session.id, "text": line}));
        }
        self.session.say(&line);
    }

    /// How much of a segment is here; where it begins.
    fn look_at_part(&self, part: &Part) -> Option<u64> {
        let plays = self.session.plays.borrow();
        let (span, reader) = plays.get(&self.id)?;
        let (taken, ready, _) = reader.upgrade()?.held();
        part.came(span, self.session.total().map(DataSize::bytes), (taken, ready));
        Some(span.start)
    }

    /// Everything has come, or nothing more will: whoever is held back looks again.
    pub(super) fn is_over(&self) {
        if let Some((_, part)) = &self.part {
            self.look_at_part(part);
        }
        self.session.hold.look_again();
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        if let Some((viewing, _)) = &self.part {
            viewing.lines.borrow_mut().ended(self.id);
        }
    }
}

impl Watcher for Ear {
    fn progress(&mut self, progress: &Progress) {
        let mut choice = self.choice.borrow_mut();
        let (mut radios, now) = (self.radios.borrow_mut(), self.session.now());
        for link in &progress.links {
            let counted = self.carried.entry(link.name.clone()).or_default();
            let more = link.bytes.saturating_sub(std::mem::replace(counted, link.bytes));
            radios.carried(now, &link.name, link.kind, more);
            self.network.traffic.received(&link.name, more);
            if let Some((viewing, _)) = &self.part {
                let busy = self.busy.contains(&link.name);
                viewing.lines.borrow_mut().moved(now, self.id, &link.name, more, busy);
            }
            choice.moved(&link.name, DataSize::from_bytes((link.rate / 8.0) as u64), Duration::from_secs(1));
        }
        let of_no_use = |state: &str| state.starts_with("banned") || state == "down";
        self.hopeless.set(!progress.links.is_empty() && progress.links.iter().all(|link| of_no_use(&link.state)));
        if self.session.plays() > 0 {
            *self.session.progress.borrow_mut() = Some(progress.clone());
        }
    }

    fn line(&mut self, text: &str) {
        self.session.say(text);
        self.events.tell(&json!({"event": "notice", "session": self.session.id, "text": text}));
    }
}

impl Audience for Ear {
    fn news(&mut self, stream: &Stream) -> Option<PlayerInput> {
        if let Some((viewing, part)) = &self.part {
            let from = self.look_at_part(part)?;
            return viewing.news(part, self.session.now(), from, self.session.total().map(DataSize::bytes), stream);
        }
        self.hold(stream);
        if !self.session.look(Some(self.id)) {
            return None;
        }
        self.session.watching.borrow().news(stream.player())
    }

    fn busy(&mut self, links: &[LinkId], name: &dyn Fn(LinkId) -> String) {
        self.busy = links.iter().map(|link| name(*link)).collect();
    }

    fn learnt(&mut self, learnt: &[InitialEstimate], name: &dyn Fn(LinkId) -> String) {
        if !learnt.is_empty() {
            let learnt = learnt.iter().map(|of| (name(of.link), of.rate, of.is_standby));
            *self.session.expected.borrow_mut() = learnt.collect();
        }
    }

    fn said(&mut self, said: &StreamEvent, name: &dyn Fn(LinkId) -> String) {
        let mut decided = self.session.decided.borrow_mut();
        let id = self.session.id;
        match *said {
            StreamEvent::Standby { link, standby: rests, reason: why } => {
                let (name, why) = (name(link), words(why));
                decided.rests.retain(|other| *other != name);
                if let Some((viewing, _)) = &self.part {
                    viewing.lines.borrow_mut().rest(&name, rests);
                }
                self.events
                    .tell(&json!({"event": "rest", "session": id, "link": name, "rests": rests, "why": why}));
                if rests {
                    decided.rests.push(name);
                }
                decided.why = Some(why);
            }
            StreamEvent::Mode { mode, reason: why } => {
                let (only, why) =
                    (if let LinkMode::Only(link) = mode { Some(name(link)) } else { None }, words(why));
                self.events.tell(&json!({"event": "mode", "session": id, "only": only, "why": why}));
                let links = self.session.progress.borrow();
                let others = links.iter().flat_map(|progress| &progress.links).map(|link| link.name.clone());
                decided.rests = others.filter(|link| only.as_ref().is_some_and(|only| only != link)).collect();
                decided.why = Some(why);
            }
            StreamEvent::Recovered { link } => {
                decided.recovered += 1;
                self.events.tell(&json!({"event": "recovered", "session": id, "link": name(link)}));
            }
            StreamEvent::Deliver { .. } => {}
        }
    }
}

fn words(why: ModeReason) -> &'static str {
    match why {
        ModeReason::Buffering => "the player waits",
        ModeReason::SingleLinkTooSlow => "no link alone would be in time",
        ModeReason::Cheapest => "the others suffice, for less",
        ModeReason::BufferLow => "the buffer runs low",
        ModeReason::LinkLost => "the only link in use does not work",
    }
}

impl Session {
    /// The player takes these bytes.
    pub(super) fn takes(self: &Rc<Self>, at: u64, bytes: &[u8]) {
        let mut watching = self.watching.borrow_mut();
        watching.takes(self.now(), at, bytes);
        let Some(head) = watching.strange() else { return };
        let session = Rc::downgrade(self);
        tokio::task::spawn_local(async move {
            let Some(video) = probe::ask(head).await else { return };
            if let Some(session) = session.upgrade() {
                session.watching.borrow_mut().told(video, "ffprobe");
            }
        });
    }

    /// Whether bytes from here on are for a player that plays and goes on, so that links may go on resting.
    pub(super) fn plays_on(&self, from: u64) -> bool {
        self.watching.borrow().plays_on(from)
    }

    /// What is known of the player and of what it plays.
    pub(super) fn standing(&self) -> Option<Standing> {
        self.look(None);
        self.watching.borrow().standing()
    }

    /// Looks at how the player gets on with its newest answer; with `of`, only if that is the newest. Tells whether it
    /// did.
    fn look(&self, of: Option<u64>) -> bool {
        // Of one of several segments nobody knows what the player has of the others.
        if self.most.get() != DataSize::MAX {
            return false;
        }
        let newest = self.plays.borrow().last_key_value().map(|(id, (_, reader))| (*id, reader.upgrade()));
        let Some((id, Some(reader))) = newest else { return false };
        if of.is_some_and(|of| of != id) {
            return false;
        }
        let (taken, ready, _) = reader.held();
        self.watching.borrow_mut().look(self.now(), taken, taken + ready, self.total());
        true
    }

    /// Time since the proxy's start.
    pub(super) fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }
}
