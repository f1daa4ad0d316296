//! What the proxy does now, on a port of its own: JSON for programs, events for pages.
//!
//! In: the sessions. Out: `/TOKEN/status` (one JSON object) and `/TOKEN/events` (server-sent events; the first one is
//! the status).
//!
//! 1. Its own port, because the media port puts every site into one origin, which must read nothing of this.
//! 2. Host, Origin and Fetch Metadata are checked before the token, and the token before anything is said.
//! 3. No URL is shown with its login or query.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode};
use marline_download::Flow;
use serde_json::{Value, json};

use super::body::{Reply, text};
use super::guard;
use super::hold::Verdict;
use super::media::plain;
use super::session::{Session, Sessions};
use super::target::shown;
use super::token::Token;
use super::watching::Standing;

/// What a request wants behind the token, if whoever asks may have it.
///
/// # Errors
/// The answer that says why not.
pub(super) fn admitted<'a, B>(
    request: &'a Request<B>,
    listener: SocketAddr,
    token: &Token,
) -> Result<&'a str, Box<Response<Reply>>> {
    let refused = |status, line| Err(Box::new(plain(status, line)));
    match guard::ours(request.headers(), listener) {
        Err(guard::Refused::Host) => {
            return refused(StatusCode::MISDIRECTED_REQUEST, "this Host is not the proxy's");
        }
        Err(guard::Refused::Page) => {
            return refused(StatusCode::FORBIDDEN, "a page of another site may not read this");
        }
        Ok(()) => {}
    }
    let mut parts = request.uri().path().trim_start_matches('/').splitn(2, '/');
    if !token.is(parts.next().unwrap_or_default()) {
        return refused(
            StatusCode::NOT_FOUND,
            "the address has no token, or an old one: the proxy prints it at its start",
        );
    }
    Ok(parts.next().unwrap_or_default())
}

/// Answers a request that was admitted.
pub(super) fn answer(sessions: &Sessions, wanted: &str) -> Response<Reply> {
    match wanted {
        "" | "status" => with_type("application/json", text(status(sessions).to_string())),
        "events" => {
            let told = sessions.events.listen();
            let now = status(sessions);
            sessions.events.tell(&json!({"event": "status", "status": now}));
            with_type("text/event-stream", Reply::Events(told))
        }
        _ => plain(StatusCode::NOT_FOUND, "there is /TOKEN/status, /TOKEN/events and /TOKEN/play"),
    }
}

/// An answer of ours.
pub(super) fn with_type(content_type: &'static str, body: Reply) -> Response<Reply> {
    let mut answer = Response::new(body);
    let fields = answer.headers_mut();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    fields.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    fields.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    fields.insert("referrer-policy", HeaderValue::from_static("no-referrer"));
    answer
}

/// Everything, as one object.
pub(super) fn status(sessions: &Sessions) -> Value {
    let (radios, now) = (sessions.radios.borrow(), sessions.now());
    let links: Vec<Value> = sessions
        .network
        .lines()
        .iter()
        .map(|line| {
            let traffic = sessions.network.traffic.of(&line.profile.name);
            json!({
                "name": line.profile.name,
                "kind": line.profile.kind.name(),
                "metered": line.profile.metered,
                "state": if line.up { "up" } else { "down" },
                "bytes": traffic.down,
                "sent_bytes": traffic.up,
                "open_tunnels": traffic.open,
                "tunnels": traffic.flows,
                "played": radios.link(now, &line.profile.name),
            })
        })
        .collect();
    let metered: u64 = sessions
        .network
        .lines()
        .iter()
        .filter(|line| line.profile.metered)
        .map(|line| sessions.network.traffic.of(&line.profile.name).down)
        .sum();
    let flows = sessions.network.traffic.flows();
    let all: Vec<Value> = sessions.all().iter().map(|session| of_session(session)).collect();
    json!({
        "links": links,
        "idle_connections": sessions.network.idle(),
        "energy": radios.device(now),
        "metered_bytes": metered,
        "window_bytes": sessions.memory.granted().bytes(),
        "ahead": sessions.ahead.status(now),
        "sessions": all,
        "open_tunnels": flows.len(),
        "tunnels": flows.iter().take(MOST_TUNNELS).map(|flow| of_flow(flow)).collect::<Vec<_>>(),
    })
}

/// A connection that is carried for a client: a tunnel, or a request that is passed on.
fn of_flow(flow: &Flow) -> Value {
    json!({
        "id": flow.id,
        "kind": flow.kind,
        "host": flow.host,
        "port": flow.port,
        "client": flow.client,
        "link": flow.link,
        "seconds": flow.began.elapsed().as_secs_f64(),
        "bytes": flow.count.down.load(Ordering::Relaxed),
        "sent_bytes": flow.count.up.load(Ordering::Relaxed),
    })
}

fn of_session(session: &Session) -> Value {
    let decided = session.decided.borrow();
    let rests = |name: &String| decided.rests.contains(name);
    let progress = session.progress.borrow();
    let links: Vec<Value> = progress
        .iter()
        .flat_map(|progress| &progress.links)
        .map(|link| {
            let state = if rests(&link.name) { "rests" } else { &link.state };
            json!({"name": link.name, "bytes": link.bytes, "rate_bps": link.rate as u64, "state": state})
        })
        .collect();
    let plays: Vec<Value> = session
        .windows()
        .into_iter()
        .map(|(span, taken, ready, held)| {
            let to = (span.end != u64::MAX).then_some(span.end);
            json!({
                "from": span.start, "to": to, "taken": taken, "frontier": taken + ready,
                "ready_bytes": ready, "held_bytes": held,
            })
        })
        .collect();
    let state = match (plays.is_empty(), progress.as_ref().map(|progress| progress.rate)) {
        (true, _) => "idle",
        (false, Some(rate)) if rate > 0.0 => "playing",
        (false, _) => "waiting",
    };
    json!({
        "session": session.id,
        "url": shown(&session.url),
        "player": session.player,
        "state": state,
        "reason": *session.reason.borrow(),
        "total": session.known().map(|(total, _)| total),
        "delivered_bytes": session.delivered.get(),
        "rate_bps": progress.as_ref().map_or(0, |progress| progress.rate as u64),
        "told": session.told(),
        "video": session.standing().map(|standing| of_video(&standing)),
        "decided": {
            "rests": decided.rests, "why": decided.why, "recovered": decided.recovered,
            "held": decided.held.as_ref().map(of_hold),
        },
        "answers": plays,
        "links": links,
    })
}

/// A player that is held back from its first picture.
fn of_hold(held: &Verdict) -> Value {
    match held {
        Verdict::Waits { waited, yet, brings, needs } => json!({
            "for_s": waited.as_secs_f64(),
            "expected_s": yet.map(|yet| yet.as_secs_f64()),
            "brings_bps": brings.bits_per_sec(),
            "needs_bps": needs.bits_per_sec(),
        }),
        Verdict::Starts(_) => Value::Null,
    }
}

/// The video, and the player as it is reckoned to stand.
fn of_video(standing: &Standing) -> Value {
    json!({
        "source": standing.source,
        "duration_s": standing.duration.as_secs_f64(),
        "rate_bps": standing.rate_bps,
        "player": standing.state,
        "position_s": standing.position.as_secs_f64(),
        "buffer_s": standing.buffer.as_secs_f64(),
        "stalls": standing.stalls,
    })
}

/// Tells those who listen how things stand, for ever.
pub(super) async fn run(sessions: Rc<Sessions>) {
    loop {
        tokio::time::sleep(TELL_EVERY).await;
        if sessions.events.has_listeners() {
            sessions.events.tell(&json!({"event": "status", "status": status(&sessions)}));
        }
    }
}

/// chosen: often enough for a bar that moves.
/// Of tunnels the newest are shown. chosen: a screen's worth of a household's browsers.
const MOST_TUNNELS: usize = 200;
const TELL_EVERY: Duration = Duration::from_millis(500);
