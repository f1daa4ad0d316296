//! What the machine knows, for status, explanations and reports.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::conn::{Conn, Pulse};
use super::{ConnId, Paths, SubflowId, reason};
use crate::energy::{Account, State};
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize, Duration, Instant};

/// A connection as it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnView {
    /// Which.
    pub conn: ConnId,
    /// In a word or two: `waiting`, `idle`, or the names of the links that carry it, with `only` behind one alone.
    pub state: String,
    /// Since when it is known.
    pub opened: Instant,
    /// All that it carried, both ways.
    pub carried: DataSize,
    /// What it is expected to carry yet.
    pub rest: DataSize,
    /// Why it is carried so: one sentence with figures.
    pub reason: String,
    /// Its subflows.
    pub paths: Vec<PathView>,
}

/// A subflow as it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathView {
    /// Which.
    pub subflow: SubflowId,
    /// Over which link; none: one that nobody told of.
    pub link: Option<LinkId>,
    /// Whether it is the connection's first one.
    pub initial: bool,
    /// Whether it was asked to stand by.
    pub backup: bool,
    /// Whether that has not shown yet in its bytes.
    pub checking: bool,
    /// The median rate of the last two seconds in which it carried; none: it never did.
    pub rate: Option<Bitrate>,
    /// The round trip, with the queue as the receiver sees it.
    pub rtt: Duration,
    /// All that it carried, both ways.
    pub carried: DataSize,
    /// Whether its path is taken for dead.
    pub dead: bool,
}

/// A link as it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkView {
    /// Which.
    pub link: LinkId,
    /// Its name.
    pub name: String,
    /// Whether each byte costs money.
    pub metered: bool,
    /// Whether it can carry subflows.
    pub up: bool,
    /// Whether a proof of life failed on it, and nothing has come over it since.
    pub silent: bool,
    /// What is expected of it: of all connections together, now or last; assumed where it was never used.
    pub rate: Bitrate,
    /// Whether connections use it now.
    pub used: bool,
    /// Payload that connections carried over it, both ways.
    pub carried: DataSize,
    /// What its budget still allows; none: it has none.
    pub budget_left: Option<DataSize>,
    /// What its radio does; none: the model does not describe it.
    pub radio: Option<State>,
}

impl Paths {
    /// The connections that it knows.
    pub fn conns(&self) -> impl Iterator<Item = ConnId> + '_ {
        self.conns.keys().copied()
    }

    /// One of them.
    pub fn view(&self, conn: ConnId) -> Option<ConnView> {
        let conn = self.conns.get(&conn)?;
        let name = |at: usize| self.host.name(at);
        let path = |sub: &super::subflow::Sub| {
            let path = sub.link.and_then(|at| conn.paths.get(at));
            PathView {
                subflow: sub.id,
                link: sub.link.and_then(|at| self.host.link(at)).map(|link| link.terms.link),
                initial: sub.initial,
                backup: sub.backup,
                checking: sub.checking().is_some(),
                rate: path.and_then(|path| path.pace.median()),
                rtt: sub.rtt(),
                carried: DataSize::from_bytes(sub.volume()),
                dead: path.is_some_and(|path| path.dead.is_some()),
            }
        };
        Some(ConnView {
            conn: conn.id,
            state: self.state(conn),
            opened: conn.opened,
            carried: DataSize::from_bytes(conn.volume),
            rest: conn.expected(&self.host),
            reason: conn.reason.sentence(name),
            paths: conn.subs.iter().filter(|sub| !sub.leaving).map(path).collect(),
        })
    }

    fn state(&self, conn: &Conn) -> String {
        if conn.pulse == Pulse::Idle {
            return "idle".to_string();
        }
        if matches!(conn.reason, reason::Reason::Waiting { .. }) && conn.carrying().len() == 1 {
            return "waiting".to_string();
        }
        let carrying = conn.carrying();
        let mut text = reason::names(carrying, &|at| self.host.name(at));
        if carrying.len() == 1 {
            text.push_str(" only");
        }
        text
    }

    /// The links.
    pub fn links(&self) -> impl Iterator<Item = LinkView> + '_ {
        let states = move |link: LinkId| self.host.meter.radio(link).map(|radio| radio.state(self.host.now));
        self.host.links.iter().map(move |link| LinkView {
            link: link.terms.link,
            name: link.terms.name.clone(),
            metered: link.terms.metered,
            up: link.up,
            silent: link.is_silent(),
            rate: link.rate(&self.host.config, self.host.now),
            used: link.used(),
            carried: link.carried,
            budget_left: link.allowance(),
            radio: states(link.terms.link),
        })
    }

    /// What the radios drew up to `now`.
    pub fn spent(&self, now: Instant) -> Account {
        self.host.meter.spent(now)
    }

    /// The same, and what they draw until they sleep if nothing more comes.
    pub fn finish(&self, now: Instant) -> Account {
        self.host.meter.finish(now)
    }
}
