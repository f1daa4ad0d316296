//! The status port: `/TOKEN/status` (one JSON object) and `/TOKEN/events` (server-sent events, the first of which is
//! the status).
//!
//! 1. The port differs from the media port, because the media port puts every site into one browser origin, which must
//!    not read the status.
//! 2. Host, Origin and Fetch Metadata are checked before the token, and the token before anything is revealed.
//! 3. URLs are shown without login and query.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode};
use marline_download::Flow;
use serde_json::{Value, json};

use super::body::{ProxyBody, text_body};
use super::media_handler::text_response;
use super::media_url::redacted;
use super::origin_check;
use super::player_estimator::PlayerStatus;
use super::session::{Session, Sessions};
use super::startup_gate::StartDecision;
use super::token::Token;

/// Checks whether a request may read the status, and returns its path after the token.
///
/// # Errors
/// The response that refuses it.
pub(super) fn check_access<'a, B>(
    request: &'a Request<B>,
    listener: SocketAddr,
    token: &Token,
) -> Result<&'a str, Box<Response<ProxyBody>>> {
    let reject = |status, line| Err(Box::new(text_response(status, line)));
    match origin_check::check_status(request.headers(), listener) {
        Err(origin_check::Rejection::ForeignHost) => {
            return reject(StatusCode::MISDIRECTED_REQUEST, "the Host field does not name this proxy");
        }
        Err(origin_check::Rejection::CrossSite) => {
            return reject(StatusCode::FORBIDDEN, "pages of other sites may not read the status");
        }
        Ok(()) => {}
    }
    let mut path_parts = request.uri().path().trim_start_matches('/').splitn(2, '/');
    if !token.matches(path_parts.next().unwrap_or_default()) {
        return reject(
            StatusCode::NOT_FOUND,
            "the URL has no valid token; the proxy prints the current URL when it starts",
        );
    }
    Ok(path_parts.next().unwrap_or_default())
}

/// Handles a request that passed [`check_access`].
pub(super) fn handle(sessions: &Sessions, path: &str) -> Response<ProxyBody> {
    match path {
        "" | "status" => response_with_type("application/json", text_body(status_json(sessions).to_string())),
        "events" => {
            let receiver = sessions.events.subscribe();
            let current = status_json(sessions);
            sessions.events.publish(&json!({"event": "status", "status": current}));
            response_with_type("text/event-stream", ProxyBody::Events(receiver))
        }
        _ => text_response(
            StatusCode::NOT_FOUND,
            "not found; available are /TOKEN/status, /TOKEN/events and /TOKEN/play",
        ),
    }
}

/// A response of the proxy itself, which browsers must not cache, embed or reinterpret.
pub(super) fn response_with_type(content_type: &'static str, body: ProxyBody) -> Response<ProxyBody> {
    let mut response = Response::new(body);
    let fields = response.headers_mut();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    fields.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    fields.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    fields.insert("referrer-policy", HeaderValue::from_static("no-referrer"));
    response
}

/// The complete status as one object.
pub(super) fn status_json(sessions: &Sessions) -> Value {
    let (energy_meter, now) = (sessions.energy_meter.borrow(), sessions.now());
    let links: Vec<Value> = sessions
        .network
        .links()
        .iter()
        .map(|link| {
            let traffic = sessions.network.traffic.link_counters(&link.profile.name);
            json!({
                "name": link.profile.name,
                "kind": link.profile.kind.name(),
                "metered": link.profile.metered,
                "state": if link.is_up { "up" } else { "down" },
                "bytes": traffic.rx_bytes,
                "sent_bytes": traffic.tx_bytes,
                "open_tunnels": traffic.open_flows,
                "tunnels": traffic.total_flows,
                "media": energy_meter.link_json(now, &link.profile.name),
            })
        })
        .collect();
    let metered: u64 = sessions
        .network
        .links()
        .iter()
        .filter(|link| link.profile.metered)
        .map(|link| sessions.network.traffic.link_counters(&link.profile.name).rx_bytes)
        .sum();
    let flows = sessions.network.traffic.flows();
    let sessions_json: Vec<Value> = sessions.all().iter().map(|session| session_json(session)).collect();
    json!({
        "links": links,
        "idle_connections": sessions.network.idle_conns(),
        "energy": energy_meter.device_json(now),
        "metered_bytes": metered,
        "window_bytes": sessions.buffer_budget.granted_total().bytes(),
        "prefetches": sessions.prefetcher.status(now),
        "sessions": sessions_json,
        "open_tunnels": flows.len(),
        "tunnels": flows.iter().take(MAX_SHOWN_TUNNELS).map(|flow| flow_json(flow)).collect::<Vec<_>>(),
    })
}

/// A connection that is relayed for a client: a tunnel or a forwarded request.
fn flow_json(flow: &Flow) -> Value {
    json!({
        "id": flow.id,
        "kind": flow.kind,
        "host": flow.host,
        "port": flow.port,
        "client": flow.client,
        "link": flow.link,
        "seconds": flow.opened_at.elapsed().as_secs_f64(),
        "bytes": flow.counters.rx_bytes.load(Ordering::Relaxed),
        "sent_bytes": flow.counters.tx_bytes.load(Ordering::Relaxed),
    })
}

fn session_json(session: &Session) -> Value {
    let decisions = session.decisions.borrow();
    let is_standby = |name: &String| decisions.standby_links.contains(name);
    let progress = session.progress.borrow();
    let links: Vec<Value> = progress
        .iter()
        .flat_map(|progress| &progress.links)
        .map(|link| {
            let state = if is_standby(&link.name) { "standby" } else { &link.state };
            json!({"name": link.name, "bytes": link.bytes, "rate_bps": link.rate as u64, "state": state})
        })
        .collect();
    let responses: Vec<Value> = session
        .buffers()
        .into_iter()
        .map(|(range, read_end, in_order, out_of_order)| {
            let end = (range.end != u64::MAX).then_some(range.end);
            json!({
                "from": range.start, "to": end, "read_end": read_end, "in_order_end": read_end + in_order,
                "in_order_bytes": in_order, "out_of_order_bytes": out_of_order,
            })
        })
        .collect();
    let state = match (responses.is_empty(), progress.as_ref().map(|progress| progress.rate)) {
        (true, _) => "idle",
        (false, Some(rate)) if rate > 0.0 => "playing",
        (false, _) => "waiting",
    };
    json!({
        "session": session.id,
        "url": redacted(&session.url),
        "player": session.player,
        "state": state,
        "reason": *session.status_text.borrow(),
        "total": session.total_and_validator().map(|(total, _)| total),
        "delivered_bytes": session.delivered_bytes.get(),
        "rate_bps": progress.as_ref().map_or(0, |progress| progress.rate as u64),
        "player_report": session.player_report_json(),
        "video": session.player_status().map(|player| player_json(&player)),
        "decisions": {
            "standby_links": decisions.standby_links, "reason": decisions.last_reason, "recoveries": decisions.recoveries,
            "startup_wait": decisions.startup_wait.as_ref().map(startup_json),
        },
        "responses": responses,
        "links": links,
    })
}

/// A delayed start of playback.
fn startup_json(decision: &StartDecision) -> Value {
    match decision {
        StartDecision::Wait { waited, remaining, supply, demand } => json!({
            "waited_s": waited.as_secs_f64(),
            "remaining_s": remaining.map(|remaining| remaining.as_secs_f64()),
            "supply_bps": supply.bits_per_sec(),
            "demand_bps": demand.bits_per_sec(),
        }),
        StartDecision::Start(_) => Value::Null,
    }
}

/// The video, and the estimated state of its player.
fn player_json(status: &PlayerStatus) -> Value {
    json!({
        "source": status.source,
        "duration_s": status.duration.as_secs_f64(),
        "rate_bps": status.rate_bps,
        "state": status.state,
        "position_s": status.position.as_secs_f64(),
        "buffer_s": status.buffer.as_secs_f64(),
        "stalls": status.stalls,
    })
}

/// Publishes the status to all subscribers of the events. Never returns.
pub(super) async fn publish_loop(sessions: Rc<Sessions>) {
    loop {
        tokio::time::sleep(STATUS_INTERVAL).await;
        if sessions.events.has_subscribers() {
            sessions.events.publish(&json!({"event": "status", "status": status_json(&sessions)}));
        }
    }
}

/// The newest tunnels are shown. chosen: fills a screen with the browsers of a household.
const MAX_SHOWN_TUNNELS: usize = 200;
/// chosen: often enough for a progress bar.
const STATUS_INTERVAL: Duration = Duration::from_millis(500);
