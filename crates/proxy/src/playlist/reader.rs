//! Parses playlists and manifests on separate threads, so that a long one does not delay other clients.
//!
//! 1. A thread cannot be stopped, so the work is bounded by a [`ParseBudget`]. A timer bounds how long the player
//!    waits, even if the thread is not scheduled.
//! 2. Long playlists share one thread, and short ones have two of their own, so that a short playlist never waits for a
//!    long one.
//! 3. At most [`MAX_QUEUED`] playlists are queued, half of them of one client; beyond that the response is 503. One
//!    playlist of a client is parsed at a time, so a client with many playlists does not delay the others. The
//!    programs of this machine are one client, which may use the whole queue and all three threads.
//! 4. The memory of a playlist is reserved before it is allocated; that of a decompressed or converted text, which is
//!    bounded, right afterwards. The thread owns the reservation.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::content_coding;
use super::dash;
use super::format::PlaylistFormat;
use super::hls;
use super::hls::RewrittenPlaylist;
use super::marks::TextForm;
use super::parse_budget::{
    MAX_DASH_BYTES, MAX_HLS_BYTES, MAX_PARSE_TIME, ParseBudget, PlaylistError, limit_error, quote_excerpt,
};
use super::signature::{Signature, sniff_bytes};
use super::text_encoding::{self, DecodedText};
use super::url_rewrite::RewriteContext;
use super::xml::{self, XmlTree};
use crate::client::buffer_budget::{Client, Reservation};

/// The pool of threads, with their permits.
pub(crate) struct PlaylistReader {
    short_threads: Arc<Semaphore>,
    long_threads: Arc<Semaphore>,
    queue_slots: Arc<Semaphore>,
    clients: RefCell<BTreeMap<Client, ClientQueue>>,
}

/// The queue of one client.
#[derive(Clone)]
struct ClientQueue {
    queue_slots: Arc<Semaphore>,
    concurrent: Arc<Semaphore>,
}

/// A playlist to be parsed.
pub(crate) struct ReadJob {
    pub(crate) body: Vec<u8>,
    /// Its Content-Encoding.
    pub(crate) encoding: Option<String>,
    /// The format by name or media type. The text itself takes precedence.
    pub(crate) format: PlaylistFormat,
    pub(crate) context: RewriteContext,
    /// Variables of the playlist that names this one.
    pub(crate) imported_variables: Vec<(String, String)>,
    /// Reserves at least the memory of the body.
    pub(crate) reservation: Reservation,
}

/// The result of parsing.
pub(crate) enum ReadOutcome {
    /// The text for the player, which owns its memory reservation, and the contents of the playlist (without the text).
    /// `is_converted`: the text was converted to UTF-8. `unsent` is alive until all bytes have been sent.
    Rewritten {
        bytes: Bytes,
        format: PlaylistFormat,
        is_converted: bool,
        unsent: Weak<()>,
        playlist: Box<RewrittenPlaylist>,
    },
    /// The player gets an error with this reason.
    Rejected(String),
    /// Too little memory, or no free thread within a reasonable time.
    NoCapacity,
}

impl Default for PlaylistReader {
    fn default() -> Self {
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        Self {
            short_threads: semaphore(2),
            long_threads: semaphore(1),
            queue_slots: semaphore(MAX_QUEUED),
            clients: RefCell::default(),
        }
    }
}

impl PlaylistReader {
    /// Parses and rewrites one playlist.
    pub(crate) async fn run_job(&self, job: ReadJob) -> ReadOutcome {
        let ClientQueue { queue_slots, concurrent } = self.client_queue(job.reservation.client());
        let Ok(_client_permit) = queue_slots.try_acquire() else { return ReadOutcome::NoCapacity };
        let Ok(_queue_permit) = Arc::clone(&self.queue_slots).try_acquire_owned() else {
            return ReadOutcome::NoCapacity;
        };
        // The decoded length of a compressed playlist is unknown.
        let is_short = job.body.len() <= SHORT_PLAYLIST && job.encoding.is_none();
        let threads = if is_short { &self.short_threads } else { &self.long_threads };
        let permits = async {
            // The thread's permit is acquired last, so that its owner waits for nothing else.
            let client_permit = Arc::clone(&concurrent).acquire_owned().await.ok()?;
            Some((client_permit, Arc::clone(threads).acquire_owned().await.ok()?))
        };
        let Ok(Some(thread_permit)) = timeout(QUEUE_TIMEOUT, permits).await else { return ReadOutcome::NoCapacity };
        let task = tokio::task::spawn_blocking(move || {
            // The permit is held until the thread has finished, even if the caller has given up.
            let _thread_permit = thread_permit;
            read(job)
        });
        match timeout(MAX_PARSE_TIME * 2, task).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => ReadOutcome::Rejected("the playlist cannot be parsed".to_owned()),
            Err(_) => ReadOutcome::Rejected("the playlist takes too long to parse".to_owned()),
        }
    }

    fn client_queue(&self, client: Client) -> ClientQueue {
        let mut clients = self.clients.borrow_mut();
        // Idle clients are forgotten: each queued playlist holds a reference.
        clients.retain(|_, queue| Arc::strong_count(&queue.concurrent) > 1);
        // All programs of this machine are one client, and several of them may be busy.
        let (max_waiting, max_concurrent) =
            if client == Client::LOCAL { (MAX_QUEUED, 3) } else { (MAX_QUEUED / 2, 1) };
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        let new_queue =
            || ClientQueue { queue_slots: semaphore(max_waiting), concurrent: semaphore(max_concurrent) };
        clients.entry(client).or_insert_with(new_queue).clone()
    }
}

/// Why a playlist is not rewritten.
enum ReadError {
    Playlist(PlaylistError),
    OutOfMemory,
}

impl From<PlaylistError> for ReadError {
    fn from(error: PlaylistError) -> Self {
        Self::Playlist(error)
    }
}

fn read(mut job: ReadJob) -> ReadOutcome {
    match rewrite_job(&mut job) {
        Ok((bytes, kind, is_converted, playlist)) => {
            job.reservation.shrink_to(bytes.len() as u64);
            let (bytes, unsent) = into_reserved_bytes(bytes, job.reservation);
            ReadOutcome::Rewritten { bytes, format: kind, is_converted, unsent, playlist: Box::new(playlist) }
        }
        Err(ReadError::Playlist(PlaylistError::Malformed(reason) | PlaylistError::Limit(reason))) => {
            ReadOutcome::Rejected(reason)
        }
        Err(ReadError::OutOfMemory) => ReadOutcome::NoCapacity,
    }
}

fn rewrite_job(job: &mut ReadJob) -> Result<(Vec<u8>, PlaylistFormat, bool, RewrittenPlaylist), ReadError> {
    let ReadJob { body, encoding, format: kind, context, imported_variables: imported, reservation } = job;
    let deadline = Instant::now() + MAX_PARSE_TIME;
    let decoded_body = match encoding {
        // Some servers name a character set there, or nonsense, before a body that is not encoded.
        Some(encoding) if !matches!(sniff_bytes(body), Signature::Playlist(_)) => {
            Some(decode_body(body, encoding, deadline, reservation)?)
        }
        _ => None,
    };
    let decoded_body = decoded_body.as_deref().unwrap_or(body);
    let decoded_text =
        DecodedText::decode(decoded_body, (decoded_body.len() as u64).saturating_add(reservation.available()))?;
    if matches!(decoded_text.text, Cow::Owned(_)) && !reservation.grow(decoded_text.text.len() as u64) {
        return Err(ReadError::OutOfMemory);
    }
    let (kind, mut playlist) = rewrite_text(&decoded_text.text, *kind, (context, imported), deadline, reservation)?;
    let bytes = decoded_text.encode(std::mem::take(&mut playlist.text));
    Ok((bytes, kind, decoded_text.is_converted, playlist))
}

fn decode_body(
    body: &[u8],
    encoding: &str,
    deadline: Instant,
    reservation: &mut Reservation,
) -> Result<Vec<u8>, ReadError> {
    let mut budget = ParseBudget::new(body.len(), 0, deadline);
    let text = content_coding::decode(body, encoding, MAX_HLS_BYTES, &mut budget)?;
    if reservation.grow(text.len() as u64) { Ok(text) } else { Err(ReadError::OutOfMemory) }
}

fn rewrite_text(
    text: &str,
    kind: PlaylistFormat,
    (context, imported): (&RewriteContext, &[(String, String)]),
    deadline: Instant,
    reservation: &mut Reservation,
) -> Result<(PlaylistFormat, RewrittenPlaylist), ReadError> {
    let format = if let Signature::Playlist(detected) = sniff_bytes(text.as_bytes()) { detected } else { kind };
    // The tree of a manifest may be many times as large as its text; a playlist is processed line by line.
    let (max_len, tree_size) = match format {
        PlaylistFormat::Hls => (MAX_HLS_BYTES, 0),
        PlaylistFormat::Dash => (MAX_DASH_BYTES, XmlTree::max_memory(text) as u64),
        PlaylistFormat::Other => (MAX_DASH_BYTES, 0),
    };
    if text.len() > max_len {
        return Err(limit_error(format!("the playlist has more than {} MiB", max_len >> 20)).into());
    }
    let available = reservation.available().saturating_sub(tree_size);
    if available < text.len() as u64 + MIN_GROWTH {
        return Err(ReadError::OutOfMemory);
    }
    let mut budget = ParseBudget::new(text.len(), available, deadline);
    let before = reservation.bytes();
    reservation.grow(tree_size + budget.output_left());
    let result = match format {
        PlaylistFormat::Hls => hls::rewrite(text, context, imported, &mut budget),
        PlaylistFormat::Dash => rewrite_dash(text, context, &mut budget),
        PlaylistFormat::Other => {
            pass_through(text, context, "it is of a format that the proxy does not parse", &mut budget)
        }
    };
    reservation.shrink_to(before + result.as_ref().map_or(0, |playlist| playlist.text.len() as u64));
    Ok((format, result?))
}

fn rewrite_dash(
    text: &str,
    context: &RewriteContext,
    budget: &mut ParseBudget,
) -> Result<RewrittenPlaylist, PlaylistError> {
    if text_encoding::declared_encoding(text).is_some_and(|encoding| !text_encoding::is_ascii_compatible(encoding))
    {
        // In UTF-7, ASCII characters can stand for others, so URLs cannot be recognized.
        return Err(limit_error("its XML declaration names an encoding that the proxy does not read"));
    }
    match dash::rewrite(text, context, budget) {
        Err(PlaylistError::Malformed(reason)) => pass_through(text, context, &reason, budget),
        result => result,
    }
}

/// Passes on text that is not parsed, such as a malformed manifest, for players that can read it all the same.
fn pass_through(
    text: &str,
    context: &RewriteContext,
    reason: &str,
    budget: &mut ParseBudget,
) -> Result<RewrittenPlaylist, PlaylistError> {
    // Marks can only be inserted where the text contains a URL literally, so other spellings are refused below.
    budget.charge_work(text.len())?;
    let has_declaration =
        |name: &[u8]| text.as_bytes().windows(name.len()).any(|part| part.eq_ignore_ascii_case(name));
    if has_declaration(b"<!DOCTYPE") || has_declaration(b"<!ENTITY") {
        return Err(limit_error("the playlist has a document type declaration"));
    }
    if text.contains("&#") {
        return Err(limit_error(format!("{reason}, and it has character references")));
    }
    if text.contains('\0') || text.starts_with("Lo") {
        return Err(limit_error("its encoding is not known"));
    }
    if let Some(reference) = xml::html_only_reference(text) {
        return Err(limit_error(format!("{reason}, and it has the reference `{}`", quote_excerpt(reference))));
    }
    let mut out = RewrittenPlaylist { parse_error: Some(reason.to_owned()), ..RewrittenPlaylist::default() };
    out.changed_urls = context.write_unparsed(&mut out.text, (text, TextForm::Value), budget)?;
    if context.mark_value(&xml::lenient_text(&out.text), budget)?.is_some() {
        // CDATA sections or comments divide the URL.
        return Err(limit_error(format!("{reason}, and it has URLs that the proxy cannot mark")));
    }
    out.urls = std::mem::take(&mut budget.urls);
    Ok(out)
}

/// Bytes that release their memory when they have been sent, and a reference that lives until then.
fn into_reserved_bytes(bytes: Vec<u8>, reservation: Reservation) -> (Bytes, Weak<()>) {
    struct ReservedBytes(Vec<u8>, #[expect(dead_code, reason = "held until the bytes go")] (Reservation, Arc<()>));
    impl AsRef<[u8]> for ReservedBytes {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    let alive = Arc::new(());
    let unsent = Arc::downgrade(&alive);
    (Bytes::from_owner(ReservedBytes(bytes, (reservation, alive))), unsent)
}

/// Our choice: two thousand segments, an hour of television.
const SHORT_PLAYLIST: usize = 256 * 1024;
/// Maximum number of playlists that are queued or being parsed. Our choice: a playlist takes milliseconds, so this is
/// about a second of work.
const MAX_QUEUED: usize = 64;
/// As long as players wait for a playlist.
const QUEUE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);
/// Memory by which a short playlist may grow.
const MIN_GROWTH: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::playlist::url_rewrite::tests::{same_url_context, test_budget};

    #[test]
    fn a_malformed_manifest_is_marked_as_players_read_it_or_refused() {
        let rewrite = |inner: &str| {
            rewrite_dash(
                &format!("<MPD>{inner}</MPD><x>"),
                &same_url_context("https://h/m.mpd"),
                &mut test_budget(),
            )
        };
        for inner in
            ["<Event>/http://10.0.0.1/</Event>", "<Event>/ht\ntp://10.0.0.1/</Event>", "<A b='/https:/10.0.0.1'/>"]
        {
            let read = rewrite(inner).unwrap();
            assert!(read.parse_error.is_some() && read.text.contains("/from-list/ht"), "{}", read.text);
        }
        for inner in [
            "<Event>/http<![CDATA[:]]>//10.0.0.1/</Event>",
            "<Event>/http<!-- x -->://10.0.0.1/</Event>",
            "<Event>/http<!-- x -->://10.0.0.1/</Event><!-- /http://10.0.0.1/ -->",
            "<![CDATA[/h]]>ttp://10.0.0.1/",
            "<A b='/http&#58;//10.0.0.1/'/>",
            "<A b='/http&colon;//10.0.0.1/'/>",
        ] {
            assert!(matches!(rewrite(inner), Err(PlaylistError::Limit(_))), "{inner}");
        }
        // A URL with unescaped ampersands is accepted.
        assert!(rewrite("<BaseURL>https://h/?a=1&num=2&quest=3</BaseURL><![CDATA[x]]>").is_ok());
    }
}
