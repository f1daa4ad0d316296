//! Reads playlists and manifests on threads of their own, so that a list that takes long delays no other client.
//!
//! 1. A thread cannot be stopped: the reading is bounded by its [`Cost`]. The player waits for a timer at most, even if the
//!    thread is not scheduled.
//! 2. Long lists share one thread, and short lists have two of their own, so that a short list never waits for a long one.
//! 3. At most [`WAITING`] lists wait for their turn, half of them of one client; beyond that the answer is 503. One list of a
//!    client is read at a time, so a client with many lists does not delay the others.
//! 4. The memory of a list is reserved before it is allocated, and is handed to the thread with it.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::address::Place;
use super::cost::{Cost, ListError, MOST_MANIFEST, MOST_PLAYLIST, TIME, limit, quoted};
use super::marks::Form;
use super::memory::{Client, Reserved};
use super::odd_text::{self, OddText};
use super::playlist::Rewritten;
use super::playlist_answer::Kind;
use super::recognize::{Look, look};
use super::xml::{self, Tree};
use super::{encoded, manifest, playlist};

/// The threads, as far as they are free.
pub(super) struct ListReader {
    short: Arc<Semaphore>,
    long: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    clients: RefCell<BTreeMap<Client, Turns>>,
}

/// Whose turn it is among the lists of one client.
#[derive(Clone)]
struct Turns {
    waiting: Arc<Semaphore>,
    turn: Arc<Semaphore>,
}

/// A list to be read.
pub(super) struct Job {
    pub(super) body: Vec<u8>,
    /// Its Content-Encoding.
    pub(super) encoding: Option<String>,
    /// What it is by its name or type; what its text says counts more.
    pub(super) kind: Kind,
    pub(super) place: Place,
    /// Variables of the playlist that names this one.
    pub(super) imported: Vec<(String, String)>,
    /// Holds the memory of the body, at least.
    pub(super) reserved: Reserved,
}

/// What has come of it.
pub(super) enum Outcome {
    /// The text for the player, which holds its memory, and what was found in it (without the text). `is_converted`: to
    /// UTF-8 from another encoding. `untaken` lives until all of it has gone.
    Rewritten { bytes: Bytes, kind: Kind, is_converted: bool, untaken: Weak<()>, rewritten: Box<Rewritten> },
    /// The player gets an error, for this reason.
    Refused(String),
    /// No memory, or no thread within a reasonable time.
    Full,
}

impl Default for ListReader {
    fn default() -> Self {
        let some = |permits| Arc::new(Semaphore::new(permits));
        Self { short: some(2), long: some(1), waiting: some(WAITING), clients: RefCell::default() }
    }
}

impl ListReader {
    /// Reads a list.
    pub(super) async fn read(&self, job: Job) -> Outcome {
        let Turns { waiting, turn } = self.turns(job.reserved.client());
        let Ok(_of_client) = waiting.try_acquire() else { return Outcome::Full };
        let Ok(_waits) = Arc::clone(&self.waiting).try_acquire_owned() else { return Outcome::Full };
        // What a compressed one becomes is not known.
        let is_short = job.body.len() <= SHORT && job.encoding.is_none();
        let threads = if is_short { &self.short } else { &self.long };
        let turns = async {
            // The thread last: a list that has one does not wait for anything.
            let own = Arc::clone(&turn).acquire_owned().await.ok()?;
            Some((own, Arc::clone(threads).acquire_owned().await.ok()?))
        };
        let Ok(Some(thread)) = timeout(PATIENCE, turns).await else { return Outcome::Full };
        let reading = tokio::task::spawn_blocking(move || {
            // Until the very end: nobody may take its place while it still works.
            let _thread = thread;
            read(job)
        });
        match timeout(TIME * 2, reading).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Outcome::Refused("it cannot be read".to_owned()),
            Err(_) => Outcome::Refused("it takes too long to read".to_owned()),
        }
    }

    fn turns(&self, client: Client) -> Turns {
        let mut clients = self.clients.borrow_mut();
        // Those with nothing to read are forgotten: each list holds a part of its own while it waits.
        clients.retain(|_, turns| Arc::strong_count(&turns.turn) > 1);
        // Programs of this machine are one client, and each of them may be busy.
        let (waiting, at_once) = if client == Client::HERE { (WAITING, 3) } else { (WAITING / 2, 1) };
        let some = |permits| Arc::new(Semaphore::new(permits));
        let new = || Turns { waiting: some(waiting), turn: some(at_once) };
        clients.entry(client).or_insert_with(new).clone()
    }
}

/// Why a list is not rewritten.
enum Stop {
    List(ListError),
    Full,
}

impl From<ListError> for Stop {
    fn from(error: ListError) -> Self {
        Self::List(error)
    }
}

fn read(mut job: Job) -> Outcome {
    match read_list(&mut job) {
        Ok((bytes, kind, is_converted, rewritten)) => {
            job.reserved.shrink_to(bytes.len() as u64);
            let (bytes, untaken) = held(bytes, job.reserved);
            Outcome::Rewritten { bytes, kind, is_converted, untaken, rewritten: Box::new(rewritten) }
        }
        Err(Stop::List(ListError::Malformed(why) | ListError::Limit(why))) => Outcome::Refused(why),
        Err(Stop::Full) => Outcome::Full,
    }
}

fn read_list(job: &mut Job) -> Result<(Vec<u8>, Kind, bool, Rewritten), Stop> {
    let Job { body, encoding, kind, place, imported, reserved } = job;
    let deadline = Instant::now() + TIME;
    let decoded = match encoding {
        // Some servers write a character set there, or nonsense, before a body that is not encoded.
        Some(encoding) if !matches!(look(body), Look::Is(_)) => Some(decoded(body, encoding, deadline, reserved)?),
        _ => None,
    };
    let body = decoded.as_deref().unwrap_or(body);
    let odd = OddText::of(body, (body.len() as u64).saturating_add(reserved.free()))?;
    if matches!(odd.text, Cow::Owned(_)) && !reserved.grow(odd.text.len() as u64) {
        return Err(Stop::Full);
    }
    let (kind, mut rewritten) = rewritten(&odd.text, *kind, (place, imported), deadline, reserved)?;
    let bytes = odd.bytes_of(std::mem::take(&mut rewritten.text));
    Ok((bytes, kind, odd.is_converted, rewritten))
}

fn decoded(body: &[u8], encoding: &str, deadline: Instant, reserved: &mut Reserved) -> Result<Vec<u8>, Stop> {
    let mut cost = Cost::new(body.len(), 0, deadline);
    let text = encoded::decoded(body, encoding, MOST_PLAYLIST, &mut cost)?;
    if reserved.grow(text.len() as u64) { Ok(text) } else { Err(Stop::Full) }
}

fn rewritten(
    text: &str,
    kind: Kind,
    (place, imported): (&Place, &[(String, String)]),
    deadline: Instant,
    reserved: &mut Reserved,
) -> Result<(Kind, Rewritten), Stop> {
    let kind = if let Look::Is(kind) = look(text.as_bytes()) { kind } else { kind };
    // A manifest's tree may be many times as large as its text; a playlist is read line by line.
    let (most, tree) = match kind {
        Kind::Playlist => (MOST_PLAYLIST, 0),
        Kind::Manifest => (MOST_MANIFEST, Tree::size_of(text) as u64),
        Kind::Unread => (MOST_MANIFEST, 0),
    };
    if text.len() > most {
        return Err(limit(format!("it has more than {} MiB", most >> 20)).into());
    }
    let free = reserved.free().saturating_sub(tree);
    if free < text.len() as u64 + SLACK {
        return Err(Stop::Full);
    }
    let mut cost = Cost::new(text.len(), free, deadline);
    let before = reserved.bytes();
    reserved.grow(tree + cost.left_for_output());
    let read = match kind {
        Kind::Playlist => playlist::rewrite(text, place, imported, &mut cost),
        Kind::Manifest => manifest_of(text, place, &mut cost),
        Kind::Unread => as_it_is(text, place, "it is of a format that the proxy does not read", &mut cost),
    };
    reserved.shrink_to(before + read.as_ref().map_or(0, |rewritten| rewritten.text.len() as u64));
    Ok((kind, read?))
}

fn manifest_of(text: &str, place: &Place, cost: &mut Cost) -> Result<Rewritten, ListError> {
    if odd_text::declared_encoding(text).is_some_and(|name| !odd_text::is_like_ascii(name)) {
        // In UTF-7 no address is what it seems to be.
        return Err(limit("its XML declaration names an encoding that the proxy does not read"));
    }
    match manifest::rewrite(text, place, cost) {
        Err(ListError::Malformed(why)) => as_it_is(text, place, &why, cost),
        read => read,
    }
}

/// What is not read, such as a manifest that is no XML, as it came, for players that read it all the same.
fn as_it_is(text: &str, place: &Place, why: &str, cost: &mut Cost) -> Result<Rewritten, ListError> {
    // Marks are only written where an address stands in the text as the player reads it.
    cost.work(text.len())?;
    let declares = |name: &[u8]| text.as_bytes().windows(name.len()).any(|part| part.eq_ignore_ascii_case(name));
    if declares(b"<!DOCTYPE") || declares(b"<!ENTITY") {
        return Err(limit("it has a document type declaration"));
    }
    if text.contains("&#") {
        return Err(limit(format!("{why}, and it has character references")));
    }
    if text.contains('\0') || text.starts_with("Lo") {
        return Err(limit("its encoding is not known"));
    }
    if let Some(name) = xml::odd_reference(text) {
        return Err(limit(format!("{why}, and it has the reference `{}`", quoted(name))));
    }
    let mut out = Rewritten { fault: Some(why.to_owned()), ..Rewritten::default() };
    out.moved = place.write_unread(&mut out.text, (text, Form::Value), cost)?;
    if place.marked(&xml::loosely_read(&out.text), cost)?.is_some() {
        // CDATA sections or comments divide it.
        return Err(limit(format!("{why}, and it has addresses that the proxy cannot mark")));
    }
    out.named = std::mem::take(&mut cost.named);
    Ok(out)
}

/// Bytes that give their memory back when they have gone to the player, and what lives until then.
fn held(bytes: Vec<u8>, reserved: Reserved) -> (Bytes, Weak<()>) {
    struct Held(Vec<u8>, #[expect(dead_code, reason = "held until the bytes go")] (Reserved, Arc<()>));
    impl AsRef<[u8]> for Held {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    let lives = Arc::new(());
    let untaken = Arc::downgrade(&lives);
    (Bytes::from_owner(Held(bytes, (reserved, lives))), untaken)
}

/// chosen: two thousand segments, an hour of television.
const SHORT: usize = 256 * 1024;
/// chosen: a playlist takes milliseconds, so this is a second of ordinary ones.
const WAITING: usize = 64;
/// As long as players wait for a playlist.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);
/// What a short list may become longer by.
const SLACK: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::super::address::tests::{affordable, at};
    use super::*;

    #[test]
    fn a_manifest_that_is_no_xml_has_marks_as_players_read_it_or_is_refused() {
        let read =
            |inner: &str| manifest_of(&format!("<MPD>{inner}</MPD><x>"), &at("https://h/m.mpd"), &mut affordable());
        for inner in
            ["<Event>/http://10.0.0.1/</Event>", "<Event>/ht\ntp://10.0.0.1/</Event>", "<A b='/https:/10.0.0.1'/>"]
        {
            let read = read(inner).unwrap();
            assert!(read.fault.is_some() && read.text.contains("/from-list/ht"), "{}", read.text);
        }
        for inner in [
            "<Event>/http<![CDATA[:]]>//10.0.0.1/</Event>",
            "<Event>/http<!-- x -->://10.0.0.1/</Event>",
            "<Event>/http<!-- x -->://10.0.0.1/</Event><!-- /http://10.0.0.1/ -->",
            "<![CDATA[/h]]>ttp://10.0.0.1/",
            "<A b='/http&#58;//10.0.0.1/'/>",
            "<A b='/http&colon;//10.0.0.1/'/>",
        ] {
            assert!(matches!(read(inner), Err(ListError::Limit(_))), "{inner}");
        }
        // An address with its ampersands as they are.
        assert!(read("<BaseURL>https://h/?a=1&num=2&quest=3</BaseURL><![CDATA[x]]>").is_ok());
    }
}
