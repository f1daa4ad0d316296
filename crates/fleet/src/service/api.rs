//! The API: requests become calls, and what comes of them JSON.
//!
//! In: a request, and who sends it. Out: an answer or a [`Problem`].
//!
//! 1. Who somebody is and whether he may still be here is asked of his certificate at each request: connections last.
//! 2. A body has at most [`LONGEST`] bytes, a relay's heartbeat [`LONGEST_BEAT`], comes in time, is called `application/json`, and has no field that is not known.
//! 3. A process that does not lead asks the one that does ([`forward`](super::forward)). When that one is not reached, heartbeats are
//!    answered by what is known, and everybody else keeps what he has: 503 `not-leading`.
//! 4. A process of the service may ask for members whom it has let in: it says for whom ([`FOR`]), and nobody else is heard who
//!    does.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Request, Response, StatusCode};
use rustls::pki_types::CertificateDer;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::client::{FOR, FROM, INSTANCE, Origin, UNTIL};
use super::desk::{Desk, unavailable};
use super::machine::Near;
use super::position::Position;
use super::problem::Problem;
use super::routes::{self, Route};
use super::words::{Beat, Report, Standing, Wish};
use crate::ca::Chain;
use crate::identity::{Name, Role};
use crate::tls::{Peer, is_for};

/// The longest body.
pub const LONGEST: usize = 64 * 1024;
/// The longest one of a heartbeat: once, after the service has begun, it names all whom a relay keeps something for (16,384 names of
/// 63 letters and their rates).
pub(super) const LONGEST_BEAT: usize = 2 << 20;
/// How long a request for a relay waits.
const PATIENCE: Duration = Duration::from_secs(2);
const DESCRIPTION: &str = include_str!("../../../../docs/fleet-api.json");

/// A token, and the key that is to be certified.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Enrol {
    /// As `marline fleet ca token` printed it.
    pub token: String,
    /// PKCS #10, PEM.
    pub request: String,
}

/// What enrolment and renewal bring.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Enrolled {
    /// The certificate and its authority's, PEM.
    pub certificate: String,
    /// The authority's, then those of the other authorities that the service trusts, each with its revocation list, PEM.
    pub authority: String,
    /// Until when the certificate is valid.
    pub not_after: String,
}

/// An operator's word on a relay.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// It takes no new streams, or takes them again.
    pub draining: bool,
    /// For so long; none: until it is said otherwise.
    #[serde(default)]
    pub for_ms: Option<u64>,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drained {
    /// The relay has announced itself.
    pub known: bool,
    /// It will be remembered after a restart.
    pub durable: bool,
}

/// Who has connected, and what it has shown.
pub(super) struct Caller {
    pub(super) peer: Peer,
    pub(super) certificate: CertificateDer<'static>,
    pub(super) from: IpAddr,
}

/// Answers one request; `in_time` is for its body.
pub(super) async fn answer(
    desk: &Arc<Desk>,
    caller: Option<&Caller>,
    request: Request<Incoming>,
    in_time: Duration,
) -> Response<Full<Bytes>> {
    match route(desk, caller, request, in_time).await {
        Ok(answer) => answer,
        Err(problem) => problem.answer(),
    }
}

async fn route(
    desk: &Arc<Desk>,
    caller: Option<&Caller>,
    request: Request<Incoming>,
    in_time: Duration,
) -> Result<Response<Full<Bytes>>, Problem> {
    let peer = caller.map(|caller| &caller.peer);
    if let Some(peer) = peer {
        desk.check(peer).map_err(|error| Problem::not_allowed(error.to_string()))?;
    }
    let member = on_behalf(peer, request.headers())?;
    let origin = origin(caller, member.is_some(), request.headers());
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let (route, path) = routes::find(&method, uri.path(), member.as_ref().or(peer))?;
    let body = if route.has_body() { body(route, request, in_time).await? } else { Bytes::new() };
    match route {
        Route::Description => return Ok(with_type(DESCRIPTION, "application/json")),
        Route::Health => return json(&serde_json::json!({"status": if desk.leads() { "ok" } else { "standby" }})),
        Route::Revoked => return Ok(with_type(revoked(desk), "application/x-pem-file")),
        Route::Service => return json(&desk.row()),
        Route::Enrol => return enrolled(desk, desk.enrol(parse(&body)?).await?),
        Route::Renew => {
            // Its own, whoever it speaks for.
            let shown = caller.ok_or_else(|| Problem::not_allowed("who are you?"))?;
            return enrolled(desk, desk.renew(shown.certificate.clone()).await?);
        }
        _ => {}
    }
    if let (Route::Heartbeat, None, Some(caller)) = (route, &member, caller) {
        check_announced(&parse(&body)?, &caller.certificate)?;
    }
    let me = member.as_ref().or(peer).ok_or_else(|| Problem::not_allowed("who are you?"))?;
    let query = uri.query().unwrap_or_default();
    if desk.leads() {
        return lead(desk, (route, path), (me, origin), query, &body).await;
    }
    // What another process has passed on is not passed on again: nobody leads, or they do not know who.
    let answered = match member {
        None => desk.pass((me, origin), &method, uri.path_and_query().map_or("/", |it| it.as_str()), &body).await,
        Some(_) => None,
    };
    match answered {
        Some(answer) => Ok(answer),
        // Rule 3.
        None if route == Route::Heartbeat => lead(desk, (route, path), (me, origin), query, &body).await,
        None => Err(unavailable("not-leading", "no process of the service is known to lead")),
    }
}

/// Refuses a relay that announces a host which its certificate is not for: edges would be led to a host of its choice. Asked where the
/// relay has shown its certificate; what another process of the service passes on was asked there.
fn check_announced(beat: &Beat, certificate: &CertificateDer<'_>) -> Result<(), Problem> {
    let refused = |host: &str| {
        Problem::not_allowed(format!(
            "`{host}` is announced, and the relay's certificate is not for that name or address"
        ))
    };
    if !is_for(certificate, &beat.server_name) {
        return Err(refused(&beat.server_name.to_string()));
    }
    for endpoint in &beat.addresses {
        let host = endpoint.host();
        if !host.parse().is_ok_and(|address| is_for(certificate, &address)) {
            return Err(refused(&host));
        }
    }
    Ok(())
}

/// For whom another process of the service asks.
fn on_behalf(peer: Option<&Peer>, headers: &HeaderMap) -> Result<Option<Peer>, Problem> {
    let Some(peer) = peer.filter(|peer| peer.identity.role == Role::Fleet) else { return Ok(None) };
    let Some(named) = headers.get(FOR) else { return Ok(None) };
    let identity = named.to_str().unwrap_or_default().parse().map_err(Problem::malformed)?;
    let until = headers.get(UNTIL).and_then(|until| until.to_str().ok()?.parse().ok());
    Ok(Some(Peer { identity, not_after: until.unwrap_or(peer.not_after), ..peer.clone() }))
}

/// Which process of a member asks, and at which address. None: it does not say.
fn origin(caller: Option<&Caller>, is_passed: bool, headers: &HeaderMap) -> Option<Origin> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    let from = if is_passed { text(FROM)?.parse().ok()? } else { caller?.from };
    Some(Origin { instance: text(INSTANCE)?.parse().ok()?, from })
}

/// What the process answers that leads; and of heartbeats each one.
async fn lead(
    desk: &Arc<Desk>,
    (route, path): (Route, Option<Name>),
    (peer, origin): (&Peer, Option<Origin>),
    query: &str,
    body: &[u8],
) -> Result<Response<Full<Bytes>>, Problem> {
    let me = &peer.identity.name;
    if let Route::Heartbeat | Route::Request | Route::Report = route {
        desk.heard(peer);
        if let Some(origin) = origin {
            desk.heard_at(&peer.identity, origin);
        }
    }
    match route {
        Route::Heartbeat => {
            let beat = parse::<Beat>(body)?;
            let mut told = desk.with(|machine, now| machine.heartbeat(me, beat, now)).map_err(impossible)?;
            told.revocations = desk.trusted().revocations.number();
            json(&told)
        }
        Route::Request => ask(desk, me, parse(body)?).await,
        Route::Report => {
            let report = parse::<Report>(body)?;
            let standing = desk.with(|machine, now| machine.report(me, report, now)).map_err(impossible)?;
            json(&told(desk, standing))
        }
        Route::Release => {
            desk.with(|machine, now| machine.release(me, now));
            json(&told(desk, desk.with(|machine, _| machine.standing(me))))
        }
        Route::Candidates => {
            let near = near(query).map_err(Problem::malformed)?;
            json(&desk.with(|machine, now| machine.candidates(me, &near, now)))
        }
        Route::Drain => drain(desk, me, path, parse(body)?).await,
        Route::Relays => {
            let mut rows = desk.with(|machine, now| {
                machine.tick(now);
                machine.relays()
            });
            desk.certificates(Role::Relay, rows.iter_mut().map(|row| (&row.name, &mut row.certificate_ends)));
            desk.duplicates(Role::Relay, rows.iter_mut().map(|row| (&row.name, &mut row.used_from)));
            json(&rows)
        }
        Route::Edges => {
            let mut rows = desk.with(|machine, now| {
                machine.tick(now);
                machine.edges()
            });
            desk.certificates(Role::Edge, rows.iter_mut().map(|row| (&row.name, &mut row.certificate_ends)));
            desk.duplicates(Role::Edge, rows.iter_mut().map(|row| (&row.name, &mut row.used_from)));
            json(&rows)
        }
        // Answered before.
        Route::Description | Route::Health | Route::Revoked | Route::Service | Route::Enrol | Route::Renew => {
            Err(unavailable("not-leading", "each process answers this by itself"))
        }
    }
}

/// With the number of the newest revocation list.
fn told(desk: &Desk, standing: Standing) -> Standing {
    Standing { revocations: desk.trusted().revocations.number(), ..standing }
}

fn enrolled(desk: &Desk, chain: Chain) -> Result<Response<Full<Bytes>>, Problem> {
    let authority = desk.trusted().others.bundle(&chain.authority);
    json(&Enrolled { certificate: chain.pem(), authority, not_after: chain.issued.not_after.to_string() })
}

async fn ask(desk: &Arc<Desk>, me: &Name, wish: Wish) -> Result<Response<Full<Bytes>>, Problem> {
    let decided = desk.decided(me);
    desk.with(|machine, now| machine.request(me, wish, now)).map_err(impossible)?;
    // Who is not decided about in time is told so: it has not lost its place.
    let _ = tokio::time::timeout(PATIENCE, decided).await;
    if !desk.leads() {
        return Err(unavailable("not-leading", "the process that was asked leads no longer"));
    }
    json(&told(desk, desk.with(|machine, _| machine.standing(me))))
}

async fn drain(
    desk: &Arc<Desk>,
    me: &Name,
    relay: Option<Name>,
    drain: Drain,
) -> Result<Response<Full<Bytes>>, Problem> {
    let relay = relay.ok_or_else(|| Problem::malformed("which relay?"))?;
    let known = desk.with(|machine, _| machine.knows(&relay));
    let durable = desk.drain(me, relay, drain.draining, drain.for_ms.map(Duration::from_millis)).await;
    json(&Drained { known, durable })
}

/// Rule 2.
async fn body(route: Route, request: Request<Incoming>, in_time: Duration) -> Result<Bytes, Problem> {
    let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    // Nothing that a page of another site could make a browser send.
    if kind.split(';').next().map(str::trim) != Some("application/json") {
        let detail = "the body must be called application/json";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "media-type", detail));
    }
    let longest = if route == Route::Heartbeat { LONGEST_BEAT } else { LONGEST };
    let long = || Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-long", format!("more than {longest} bytes"));
    if request.body().size_hint().lower() > longest as u64 {
        return Err(long());
    }
    let read = tokio::time::timeout(in_time, Limited::new(request.into_body(), longest).collect()).await;
    let read =
        read.map_err(|_| Problem::new(StatusCode::REQUEST_TIMEOUT, "slow", "the body did not come in time"))?;
    let read = read.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
        Some(_) => long(),
        None => Problem::malformed(format!("the body broke off: {error}")),
    })?;
    Ok(read.to_bytes())
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    // The library's words name the field; of a token they could repeat a part, and a token stands in no number.
    serde_json::from_slice(body).map_err(|error| Problem::malformed(format!("the body: {error}")))
}

fn near(query: &str) -> Result<Near, String> {
    let (mut latitude, mut longitude, mut near) = (None, None, Near::default());
    for (key, value) in url::form_urlencoded::parse(query.as_bytes()) {
        let degrees = || value.parse::<f64>().map_err(|_| format!("`{value}`: degrees such as 50.1"));
        match &*key {
            "latitude" => latitude = Some(degrees()?),
            "longitude" => longitude = Some(degrees()?),
            "origin" => near.origin = Some(value.parse()?),
            other => return Err(format!("`{other}` is not known: latitude, longitude, origin")),
        }
    }
    near.position = match (latitude, longitude) {
        (Some(latitude), Some(longitude)) => Some(Position::new(latitude, longitude)?),
        (None, None) => None,
        _ => return Err("latitude and longitude belong together".to_owned()),
    };
    Ok(near)
}

fn impossible(text: String) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "impossible", text)
}

/// The list, as relays keep it in a file.
fn revoked(desk: &Desk) -> String {
    crate::ca::armoured("X509 CRL", &desk.trusted().revocations.crl())
}

fn json(value: &impl Serialize) -> Result<Response<Full<Bytes>>, Problem> {
    let text = serde_json::to_vec(value).map_err(|error| unavailable("answer", error.to_string()))?;
    Ok(with_type(text, "application/json"))
}

pub(super) fn with_type(body: impl Into<Bytes>, kind: &'static str) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(body.into()));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}
