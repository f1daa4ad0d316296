//! What another process needs that takes the lead: members as they last were, row by row.
//!
//! In: rows that somebody else has written. Out: rows that have changed.
//!
//! 1. A heartbeat or report that brings nothing new is no news: who lives will say so to whoever leads. So what is written grows
//!    with the changes in a fleet and not with its members.
//! 2. What is read counts as heard now, and its edges as seated: two heartbeats later, who was not heard is gone.
//! 3. Rows that cannot be read are left out: their members announce themselves again anyway.

use std::collections::BTreeSet;

use marline_core::units::Instant;
use serde::{Deserialize, Serialize};

use super::super::words::{Beat, Held, Wish};
use super::Machine;
use super::edges::Seat;
use crate::identity::Name;

/// One member, as it is kept for others: a key, and what stands there; none: it has gone.
pub type Row = (String, Option<String>);

/// Whose rows have changed.
#[derive(Debug, Default)]
pub(super) struct News {
    shares: bool,
    relays: BTreeSet<Name>,
    edges: BTreeSet<Name>,
}

impl News {
    pub(super) fn relay(&mut self, name: &Name) {
        if self.shares {
            self.relays.insert(name.clone());
        }
    }

    pub(super) fn edge(&mut self, name: &Name) {
        if self.shares {
            self.edges.insert(name.clone());
        }
    }

    pub(super) fn shares(&self) -> bool {
        self.shares
    }
}

#[derive(Serialize, Deserialize)]
struct EdgeRow {
    wish: Wish,
    held: Option<Held>,
}

const RELAY: &str = "relay/";
const EDGE: &str = "edge/";

impl Machine {
    /// Whether changes are collected for others; they are not, unless somebody asks for them.
    pub fn share(&mut self, shares: bool) {
        self.news = News { shares, ..News::default() };
        self.renew();
    }

    /// The rows that have changed since the last call, so many at most.
    pub fn changes(&mut self, most: usize) -> Vec<Row> {
        let mut rows = Vec::new();
        while rows.len() < most
            && let Some(name) = self.news.relays.pop_first()
        {
            let text = self.relays.get(&name).and_then(|relay| serde_json::to_string(&relay.beat).ok());
            rows.push((format!("{RELAY}{name}"), text));
        }
        while rows.len() < most
            && let Some(name) = self.news.edges.pop_first()
        {
            rows.push((format!("{EDGE}{name}"), self.edge_row(&name)));
        }
        rows
    }

    /// These could not be written: they are news again.
    pub fn unchanged(&mut self, rows: &[Row]) {
        for (key, _) in rows {
            match (named(key, RELAY), named(key, EDGE)) {
                (Some(relay), _) => self.news.relay(&relay),
                (_, Some(edge)) => self.news.edge(&edge),
                _ => {}
            }
        }
    }

    /// Rule 2. Whom it knows already, it knows better.
    pub fn restore(&mut self, rows: &[(String, String)], now: Instant) {
        self.advance(now);
        for (name, text) in rows.iter().filter_map(|(key, text)| Some((named(key, RELAY)?, text))) {
            if let Some(beat) = serde_json::from_str::<Beat>(text).ok().filter(|beat| beat.check().is_ok()) {
                self.remember(name, beat);
            }
        }
        for (name, text) in rows.iter().filter_map(|(key, text)| Some((named(key, EDGE)?, text))) {
            let row = serde_json::from_str::<EdgeRow>(text).ok().filter(|row| row.wish.check().is_ok());
            let Some(EdgeRow { wish, held }) = row.filter(|_| !self.edges.contains_key(&name)) else { continue };
            self.heard(&name, wish);
            if let Some(Held { relay, reservation, mark }) = held {
                let (since, ends) = (self.now, self.now + self.config.lease);
                self.change(&name, |edge| edge.seat = Some(Seat { relay, reservation, since, ends, mark }));
            }
        }
        let mark = self.mark;
        self.claims.values_mut().for_each(|claims| claims.changed = mark);
        self.renew();
    }

    /// Everything is news: a new epoch finds a store that may have lost some of it.
    pub(super) fn renew(&mut self) {
        if self.news.shares {
            self.news.relays = self.relays.keys().cloned().collect();
            self.news.edges = self.edges.keys().cloned().collect();
        }
    }

    fn edge_row(&self, name: &Name) -> Option<String> {
        let edge = self.edges.get(name)?;
        let held = |seat: &Seat| Held { relay: seat.relay.clone(), reservation: seat.reservation, mark: seat.mark };
        let row = EdgeRow { wish: edge.wish.clone(), held: edge.seat.as_ref().map(held) };
        serde_json::to_string(&row).ok()
    }
}

fn named(key: &str, kind: &str) -> Option<Name> {
    key.strip_prefix(kind)?.parse().ok()
}
