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

use http::{Request, Response, StatusCode};
use marline_core::proxy::{PlayerStatus, StartDecision};
use marline_download::Flow;
use serde_json::{Value, json};

use crate::client::media_url::redacted;
use crate::client::origin_check;
use crate::client::token::Token;
use crate::delivery::film_playback::FilmPlayback;
use crate::media::prefetch::Prefetcher;
use crate::response::body::{ProxyBody, text_body};
use crate::response::own::{response_with_type, text_response};
use crate::session::Session;
use crate::session::table::Sessions;

/// Serves the status; see the [module documentation](self).
pub(crate) struct StatusHandler {
    pub(crate) sessions: Rc<Sessions>,
    prefetcher: Rc<Prefetcher>,
}

/// Checks whether a request may read the status, and returns its path after the token.
///
/// # Errors
/// The response that refuses it.
pub(crate) fn check_access<'a, B>(
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

impl StatusHandler {
    pub(crate) fn new(sessions: Rc<Sessions>, prefetcher: Rc<Prefetcher>) -> Self {
        Self { sessions, prefetcher }
    }

    /// Handles a request that passed [`check_access`].
    pub(crate) fn handle(&self, path: &str) -> Response<ProxyBody> {
        match path {
            "" | "status" => response_with_type("application/json", text_body(self.json().to_string())),
            "events" => {
                let receiver = self.sessions.accounting.events.subscribe();
                let current = self.json();
                self.sessions.accounting.events.publish(&json!({"event": "status", "status": current}));
                response_with_type("text/event-stream", ProxyBody::Events(receiver))
            }
            _ => text_response(
                StatusCode::NOT_FOUND,
                "not found; available are /TOKEN/status, /TOKEN/events and /TOKEN/play",
            ),
        }
    }

    /// The complete status as one object.
    fn json(&self) -> Value {
        let sessions = &self.sessions;
        let (network, energy_meter) = (&sessions.links.network, sessions.accounting.energy_meter.borrow());
        let now = sessions.links.now();
        let links: Vec<Value> = network
            .links()
            .iter()
            .map(|link| {
                let traffic = network.traffic.link_counters(&link.profile.name);
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
        let metered: u64 = network
            .links()
            .iter()
            .filter(|link| link.profile.metered)
            .map(|link| network.traffic.link_counters(&link.profile.name).rx_bytes)
            .sum();
        let flows = network.traffic.flows();
        let sessions_json: Vec<Value> = sessions.all().iter().map(|session| session_json(session)).collect();
        json!({
            "links": links,
            "idle_connections": network.idle_conns(),
            "energy": energy_meter.device_json(now),
            "metered_bytes": metered,
            "window_bytes": sessions.buffer_budget.granted_total().bytes(),
            "prefetches": self.prefetcher.status(),
            "sessions": sessions_json,
            "open_tunnels": flows.len(),
            "tunnels": flows.iter().take(MAX_SHOWN_TUNNELS).map(|flow| flow_json(flow)).collect::<Vec<_>>(),
        })
    }

    /// Publishes the status to all subscribers of the events. Never returns.
    pub(crate) async fn publish_loop(&self) {
        loop {
            tokio::time::sleep(STATUS_INTERVAL).await;
            if self.sessions.accounting.events.has_subscribers() {
                self.sessions.accounting.events.publish(&json!({"event": "status", "status": self.json()}));
            }
        }
    }
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
    let delivery = &session.delivery;
    let decisions = delivery.decisions.borrow();
    let is_standby = |name: &String| decisions.standby_links.contains(name);
    let progress = delivery.responses.progress();
    let links: Vec<Value> = progress
        .iter()
        .flat_map(|progress| &progress.links)
        .map(|link| {
            let state = if is_standby(&link.name) { "standby" } else { &link.state };
            json!({"name": link.name, "bytes": link.bytes, "rate_bps": link.rate as u64, "state": state})
        })
        .collect();
    let responses: Vec<Value> = delivery
        .responses
        .buffers()
        .into_iter()
        .map(|response| {
            let end = (response.range.end != u64::MAX).then_some(response.range.end);
            json!({
                "from": response.range.start,
                "to": end,
                "read_end": response.read_end,
                "in_order_end": response.in_order_end(),
                "in_order_bytes": response.in_order,
                "out_of_order_bytes": response.out_of_order,
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
        "reason": delivery.status_text(),
        "total": session.total_and_validator().map(|(total, _)| total),
        "delivered_bytes": delivery.responses.delivered_bytes(),
        "rate_bps": progress.as_ref().map_or(0, |progress| progress.rate as u64),
        "player_report": player_report_json(&delivery.film),
        "video": delivery.player_status().map(|player| player_json(&player)),
        "decisions": {
            "standby_links": decisions.standby_links, "reason": decisions.last_reason, "recoveries": decisions.recoveries,
            "startup_wait": decisions.startup_wait.as_ref().map(startup_json),
        },
        "responses": responses,
        "links": links,
    })
}

/// What the player reports about itself; null if there is no recent report.
fn player_report_json(film: &FilmPlayback) -> Value {
    let Some((report, age)) = film.last_report() else { return Value::Null };
    json!({
        "source": report.source,
        "position_s": report.position.as_secs_f64(),
        "buffer_s": report.buffer.map(|buffer| buffer.as_secs_f64()),
        "waiting": report.is_waiting,
        "stalls": report.stalls,
        "stalled_s": report.stalled_time.as_secs_f64(),
        "ended": report.has_ended,
        "age_s": age.as_secs_f64(),
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

/// The newest tunnels are shown. Our choice: fills a screen with the browsers of a household.
const MAX_SHOWN_TUNNELS: usize = 200;
/// Our choice: often enough for a progress bar.
const STATUS_INTERVAL: Duration = Duration::from_millis(500);
