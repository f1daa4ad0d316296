//! Whether UDP of a LAN goes unanswered over its link: a link may be silent while no TCP connection is there to show it.
//!
//! The counters of the interface are looked at each [`LOOK`]. Where packets leave and none come back for [`PATIENCE`], the relay is
//! connected to over this link and over others, for as long as a handshake takes. Only if another link answers and this one does not, the
//! link counts as silent, until a later attempt over it succeeds. Traffic that is never answered (a stream without feedback) causes an
//! attempt at growing intervals, which is a few hundred bytes.
//!
//! Counting packets in conntrack was not used: the interface's own counters are there without a privilege and cost nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use marline_core::units::Instant;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Edge;
use super::dial::{By, connect};

const LOOK: Duration = Duration::from_millis(250);
/// chosen: longer than a round trip over LTE in a bad moment; with the attempt a silent link is left within three seconds.
const PATIENCE: Duration = Duration::from_millis(800);
/// chosen: a SYN that is answered later than this is as good as lost for a call.
const ANSWER: Duration = Duration::from_secs(1);
/// Between attempts: the first pause, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// chosen: more links than anybody's default and next best.
const OTHERS: usize = 3;

/// Packets that an interface has sent and received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Packets {
    sent: u64,
    received: u64,
}

/// Looks for packets that go unanswered.
#[derive(Debug, Default)]
struct Unanswered {
    link: String,
    /// When an answer was seen last.
    before: Packets,
    /// Since when packets are sent that nothing answers.
    since: Option<Instant>,
    next: Option<Instant>,
    pause: Option<Duration>,
}

impl Unanswered {
    /// Looks once. True: an attempt is due.
    fn look(&mut self, now: Instant, link: &str, packets: Packets) -> bool {
        if self.link != link {
            *self = Self { link: link.to_owned(), before: packets, ..Self::default() };
        }
        let sent = packets.sent.saturating_sub(self.before.sent);
        let received = packets.received.saturating_sub(self.before.received);
        // One packet among several may be a neighbour's, an answer to ARP say.
        if received > 1 || (received == 1 && sent <= 3) || packets.received < self.before.received {
            *self = Self { link: std::mem::take(&mut self.link), before: packets, ..Self::default() };
            return false;
        }
        if sent == 0 {
            return false;
        }
        let since = *self.since.get_or_insert(now);
        if now.since(since) < PATIENCE || self.next.is_some_and(|next| now < next) {
            return false;
        }
        let [first, longest] = PAUSES;
        let pause = self.pause.unwrap_or(first);
        self.next = Some(now + pause);
        self.pause = Some((2 * pause).min(longest));
        true
    }
}

/// Watches the link that the rest of a LAN's packets takes, until dropped.
pub(super) async fn watch(edge: &Edge) -> Infallible {
    let begun = std::time::Instant::now();
    let (mut unanswered, mut silent) = (Unanswered::default(), BTreeMap::<String, (Instant, Duration)>::new());
    loop {
        tokio::time::sleep(LOOK).await;
        let now = Instant::from_millis(u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX));
        let link = edge.passing.borrow().clone();
        if let Some((link, packets)) = link.and_then(|link| packets(&link).map(|packets| (link, packets)))
            && unanswered.look(now, &link, packets)
            && !silent.contains_key(&link)
            && is_silent(edge, &link).await
        {
            tracing::warn!(link, "packets of the LAN go unanswered, and another link reaches the relay");
            silent.insert(link, (now + PAUSES[0], PAUSES[0]));
        }
        let due: Vec<String> =
            silent.iter().filter(|(_, (next, _))| *next <= now).map(|(link, _)| link.clone()).collect();
        for link in due {
            if reaches(edge, [link.clone()]).await.contains(&link) {
                silent.remove(&link);
            } else if let Some((next, pause)) = silent.get_mut(&link) {
                *pause = (2 * *pause).min(PAUSES[1]);
                *next = now + *pause;
            }
        }
        let names: BTreeSet<String> = silent.keys().cloned().collect();
        edge.silent.send_if_modified(|now| {
            let is_new = *now != names;
            *now = names;
            is_new
        });
    }
}

/// Whether other links reach the relay, and this one does not.
async fn is_silent(edge: &Edge, link: &str) -> bool {
    let others = edge.links().into_iter().filter(|other| other.up && other.name != link).map(|other| other.name);
    let links: Vec<String> = others.take(OTHERS).chain([link.to_owned()]).collect();
    let reached = reaches(edge, links).await;
    !reached.is_empty() && !reached.contains(link)
}

/// Over which of these links the first relay answers.
async fn reaches(edge: &Edge, links: impl IntoIterator<Item = String>) -> BTreeSet<String> {
    let Some(station) = edge.roads.relays.order().into_iter().next() else { return BTreeSet::new() };
    let addresses = timeout(ANSWER, station.addresses()).await.ok().and_then(Result::ok).unwrap_or_default();
    let mut tried = JoinSet::new();
    for link in links {
        let addresses = addresses.clone();
        tried.spawn(async move {
            let mut answered = false;
            for address in addresses.into_iter().take(2) {
                answered = answered || answers(&link, address).await;
            }
            answered.then_some(link)
        });
    }
    let mut reached = BTreeSet::new();
    while let Some(one) = tried.join_next().await {
        reached.extend(one.ok().flatten());
    }
    reached
}

/// Whether something answers there over this link: a refusal is an answer.
async fn answers(link: &str, address: SocketAddr) -> bool {
    let by = By { device: Some(link.to_owned()), plain: true, ..By::default() };
    match timeout(ANSWER, connect(address, by)).await {
        Ok(Ok(_)) => true,
        Ok(Err(error)) => matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset),
        Err(_) => false,
    }
}

/// The counters of an interface of this network.
fn packets(link: &str) -> Option<Packets> {
    parse(&std::fs::read_to_string("/proc/thread-self/net/dev").ok()?, link)
}

/// A line of proc_pid_net(5)'s `dev`: name, then received bytes, packets and six more, then sent bytes and packets.
fn parse(text: &str, link: &str) -> Option<Packets> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(link)?.strip_prefix(':'))?;
    let numbers: Vec<u64> = line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    Some(Packets { received: *numbers.get(1)?, sent: *numbers.get(9)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks each 250 ms with so many more packets each time; gives the times of attempts.
    fn attempts(unanswered: &mut Unanswered, from: Packets, each: (u64, u64), looks: u64) -> (Vec<u64>, Packets) {
        let (mut at, mut packets) = (Vec::new(), from);
        for look in 0..looks {
            packets.sent += each.0;
            packets.received += each.1;
            if unanswered.look(Instant::from_millis(look * 250), "wwan0", packets) {
                at.push(look * 250);
            }
        }
        (at, packets)
    }

    #[test]
    fn packets_without_an_answer_are_followed_by_attempts_at_growing_intervals() {
        let mut unanswered = Unanswered::default();
        unanswered.look(Instant::ZERO, "wwan0", Packets::default());
        let (at, packets) = attempts(&mut unanswered, Packets::default(), (3, 0), 80);
        assert_eq!(at, [1000, 2000, 4000, 8000, 16_000]);
        let mut answered = packets;
        answered.received += 2;
        assert!(!unanswered.look(Instant::from_millis(20_000), "wwan0", answered));
        assert_eq!(unanswered.pause, None, "the next silence is found as soon as the first one");
    }

    #[test]
    fn what_is_answered_or_idle_or_new_causes_none() {
        for each in [(5, 1), (1, 1), (100, 3), (0, 0), (0, 4)] {
            let mut unanswered = Unanswered::default();
            unanswered.look(Instant::ZERO, "wwan0", Packets::default());
            assert_eq!(attempts(&mut unanswered, Packets::default(), each, 100).0, [0; 0], "{each:?}");
        }
        let mut unanswered = Unanswered::default();
        let long = Packets { sent: 1000, received: 0 };
        assert!(!unanswered.look(Instant::from_millis(0), "eth0", long));
        assert!(
            !unanswered.look(Instant::from_millis(5000), "eth0", long),
            "what was sent before it took the link"
        );
    }

    #[test]
    fn the_kernels_table_is_read_by_name() {
        let text = "Inter-|   Receive                          |  Transmit\n face |bytes    packets\n    lo:  1 2 0 0 0 0 0 0 3 4 0 0 0 0 0 0\n\
                    wwan10: 9 8 0 0 0 0 0 0 7 6 0 0 0 0 0 0\n wwan1: 10 20 0 0 0 0 0 0 30 40 0 0 0 0 0 0\n";
        assert_eq!(parse(text, "wwan1"), Some(Packets { sent: 40, received: 20 }));
        assert_eq!((parse(text, "wwan"), parse("wwan1: 1 2", "wwan1")), (None, None));
    }
}
