//! Pays what a process that is no more has left owed: fills holes that were acknowledged ahead, or ends the flow.
//!
//! In: its ledger ([`super::ledger`]), the devices. Out: the flows have their bytes, or an error; the ledger is gone.
//!
//! 1. Every hole is asked for over the first link, then over the next ones, [`TRIES`] times at the most.
//! 2. What came is given to the own stack as the sender would have sent it, and twice more: whether it had room for it is not seen
//!    from here, and a byte that comes twice does no harm.
//! 3. A flow with a hole that is not filled within [`PATIENCE`], or of which it is not known what was acknowledged, is ended: its
//!    application gets an error at once, and does not wait for ever for what its sender takes for received.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use marline_core::accel::{Bytes, Fetch, FetchId, Owed};
use marline_core::link::LinkId;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep, timeout_at};

use super::fill::{Answer, Outfit, run_fills};
use super::raw::Inward;
use super::{AccelError, Errand, ledger};

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paid {
    /// Holes that were filled.
    pub filled: usize,
    /// Flows that were ended, as their bytes could not be had.
    pub ended: usize,
}

/// A hole that is asked for.
struct Asked {
    flow: usize,
    hole: usize,
    tries: usize,
    is_filled: bool,
}

/// Pays everything that the ledger says, and removes it. Runs on a tokio runtime.
///
/// # Errors
/// Packets cannot be given to the own stack; the ledger stays.
pub async fn run_keeper(path: &Path, outfit: Outfit) -> Result<Paid, AccelError> {
    let failed = || AccelError::kernel(format!("{}: the bytes that are missing", path.display()));
    let owed = ledger::read(path).map_err(failed())?;
    let paid = if owed.is_empty() { Paid::default() } else { pay(&owed, outfit).await? };
    ledger::remove(path);
    Ok(paid)
}

async fn pay(owed: &[Owed], outfit: Outfit) -> Result<Paid, AccelError> {
    let stack = Inward::open()?;
    let give = |packets: &[Bytes]| {
        // One that is lost is given again.
        packets.iter().for_each(|packet| drop(stack.give(&packet.0)));
    };
    let links: Vec<LinkId> = outfit.devices.keys().copied().collect();
    let (errands, ordered) = unbounded_channel();
    let (tell, mut told) = unbounded_channel();
    let answer: Answer = Arc::new(move |fetch: FetchId, _, bytes: Option<Vec<u8>>| drop(tell.send((fetch, bytes))));
    let fills = tokio::spawn(run_fills(outfit, ordered, answer));
    let mut asked: Vec<Asked> = Vec::new();
    for (flow, owes) in owed.iter().enumerate().filter(|(_, owes)| owes.is_sure) {
        asked.extend((0..owes.holes.len()).map(|hole| Asked { flow, hole, tries: 0, is_filled: false }));
    }
    let fetch_of = |asked: &Asked| owed.get(asked.flow)?.holes.get(asked.hole)?.fetch.as_ref();
    let mut open = 0;
    for (number, one) in asked.iter_mut().enumerate() {
        open += usize::from(ask(&errands, number, fetch_of(one), &links, one.tries));
    }
    let (until, mut given) = (Instant::now() + PATIENCE, Vec::new());
    owed.iter().filter(|owes| !owes.is_sure).for_each(|owes| give(&owes.end()));
    while open > 0 {
        let Ok(Some((FetchId(number), bytes))) = timeout_at(until, told.recv()).await else { break };
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        let Some(one) = asked.get_mut(number).filter(|one| !one.is_filled) else { continue };
        open -= 1;
        let place = owed.get(one.flow).and_then(|owes| Some((owes, owes.holes.get(one.hole)?)));
        if let (Some(bytes), Some((owes, hole))) = (bytes, place) {
            one.is_filled = true;
            let packets = owes.fill(hole, &bytes);
            give(&packets);
            given.extend(packets);
        } else {
            one.tries += 1;
            open += usize::from(ask(&errands, number, fetch_of(one), &links, one.tries));
        }
    }
    fills.abort();
    let mut paid = Paid { filled: asked.iter().filter(|one| one.is_filled).count(), ended: 0 };
    for (flow, owes) in owed.iter().enumerate() {
        if !owes.is_sure || asked.iter().any(|one| one.flow == flow && !one.is_filled) {
            given.extend(owes.end());
            paid.ended += 1;
        }
    }
    for pause in AGAIN {
        give(&given);
        sleep(pause).await;
    }
    Ok(paid)
}

/// Asks for a hole over the link whose turn it is; false: it cannot be asked for any more.
fn ask(
    errands: &UnboundedSender<Errand>,
    number: usize,
    fetch: Option<&Fetch>,
    links: &[LinkId],
    tries: usize,
) -> bool {
    let Some(fetch) = fetch.filter(|_| tries < TRIES) else { return false };
    let Some(link) = links.get(tries % links.len().max(1)) else { return false };
    let fetch = Fetch { id: FetchId(number as u64), link: *link, ..fetch.clone() };
    errands.send(Errand::Fetch(fetch)).is_ok()
}

/// chosen: each link twice where there are two.
const TRIES: usize = 4;
/// That of the process that is no more ([`marline_core::accel`], "Loss Hider" 7).
const PATIENCE: Duration = Duration::from_secs(10);
/// chosen: what had no room is given again when the application has read some of it.
const AGAIN: [Duration; 2] = [Duration::from_millis(60), Duration::from_millis(240)];
