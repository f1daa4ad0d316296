//! The API: requests become calls, and what comes of them JSON.
//!
//! In: a request, and who sends it. Out: an answer or a [`Problem`].
//!
//! 1. Who somebody is and whether he may still be here is asked of his certificate at each request: connections last.
//! 2. A body has at most [`LONGEST`] bytes, comes in time, is called `application/json`, and has no field that is not known.
//! 3. A process that does not lead says so, and its clients ask another one.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::desk::{Desk, unavailable};
use super::machine::Near;
use super::position::Position;
use super::problem::Problem;
use super::routes::{self, Route};
use super::words::{Beat, Report, Wish};
use crate::identity::Name;
use crate::tls::Peer;

/// The longest body.
pub const LONGEST: usize = 64 * 1024;
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

/// What enrolment brings.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Enrolled {
    /// The certificate and its authority's, PEM.
    pub certificate: String,
    /// The authority's alone.
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

/// Answers one request; `in_time` is for its body.
pub(super) async fn answer(
    desk: &Arc<Desk>,
    peer: Option<&Peer>,
    request: Request<Incoming>,
    in_time: Duration,
) -> Response<Full<Bytes>> {
    match route(desk, peer, request, in_time).await {
        Ok(answer) => answer,
        Err(problem) => problem.answer(),
    }
}

async fn route(
    desk: &Arc<Desk>,
    peer: Option<&Peer>,
    request: Request<Incoming>,
    in_time: Duration,
) -> Result<Response<Full<Bytes>>, Problem> {
    if let Some(peer) = peer {
        desk.check(peer).map_err(|error| Problem::not_allowed(error.to_string()))?;
    }
    let (route, path) = routes::find(request.method(), request.uri().path(), peer)?;
    let without_lead = matches!(route, Route::Description | Route::Health | Route::Revoked);
    if !without_lead && !desk.leads() {
        return Err(unavailable("not-leading", "another process of the service leads"));
    }
    let me = || peer.map(|peer| &peer.identity.name).ok_or_else(|| Problem::not_allowed("who are you?"));
    match route {
        Route::Description => Ok(with_type(DESCRIPTION, "application/json")),
        Route::Health => json(&serde_json::json!({"status": if desk.leads() { "ok" } else { "standby" }})),
        Route::Revoked => Ok(with_type(revoked(desk), "application/x-pem-file")),
        Route::Enrol => enrol(desk, body(request, in_time).await?).await,
        Route::Heartbeat => {
            let (me, beat) = (me()?, body::<Beat>(request, in_time).await?);
            let mut told = desk.with(|machine, now| machine.heartbeat(me, beat, now)).map_err(impossible)?;
            told.revocations = desk.trusted().revocations.number();
            json(&told)
        }
        Route::Request => ask(desk, me()?, body(request, in_time).await?).await,
        Route::Report => {
            let (me, report) = (me()?, body::<Report>(request, in_time).await?);
            json(&desk.with(|machine, now| machine.report(me, report, now)).map_err(impossible)?)
        }
        Route::Release => {
            let me = me()?;
            desk.with(|machine, now| machine.release(me, now));
            json(&desk.with(|machine, _| machine.standing(me)))
        }
        Route::Candidates => {
            let near = near(request.uri().query().unwrap_or_default()).map_err(Problem::malformed)?;
            let me = me()?;
            json(&desk.with(|machine, now| machine.candidates(me, &near, now)))
        }
        Route::Drain => drain(desk, me()?, path, body(request, in_time).await?).await,
        Route::Relays => json(&desk.with(|machine, now| {
            machine.tick(now);
            machine.relays()
        })),
        Route::Edges => json(&desk.with(|machine, now| {
            machine.tick(now);
            machine.edges()
        })),
    }
}

async fn enrol(desk: &Arc<Desk>, enrol: Enrol) -> Result<Response<Full<Bytes>>, Problem> {
    let chain = desk.enrol(enrol.token, enrol.request).await?;
    let authority = crate::ca::pem(&chain.authority);
    json(&Enrolled { certificate: chain.pem(), authority, not_after: chain.issued.not_after.to_string() })
}

async fn ask(desk: &Arc<Desk>, me: &Name, wish: Wish) -> Result<Response<Full<Bytes>>, Problem> {
    let decided = desk.decided(me);
    desk.with(|machine, now| machine.request(me, wish, now)).map_err(impossible)?;
    // Who is not decided about in time is told so: it has not lost its place.
    let _ = tokio::time::timeout(PATIENCE, decided).await;
    json(&desk.with(|machine, _| machine.standing(me)))
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
async fn body<T: DeserializeOwned>(request: Request<Incoming>, in_time: Duration) -> Result<T, Problem> {
    let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    // Nothing that a page of another site could make a browser send.
    if kind.split(';').next().map(str::trim) != Some("application/json") {
        let detail = "the body must be called application/json";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "media-type", detail));
    }
    let long = || Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-long", format!("more than {LONGEST} bytes"));
    if request.body().size_hint().lower() > LONGEST as u64 {
        return Err(long());
    }
    let read = tokio::time::timeout(in_time, Limited::new(request.into_body(), LONGEST).collect()).await;
    let read =
        read.map_err(|_| Problem::new(StatusCode::REQUEST_TIMEOUT, "slow", "the body did not come in time"))?;
    let read = read.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
        Some(_) => long(),
        None => Problem::malformed(format!("the body broke off: {error}")),
    })?;
    // The library's words name the field; of a token they could repeat a part, and a token stands in no number.
    serde_json::from_slice(&read.to_bytes()).map_err(|error| Problem::malformed(format!("the body: {error}")))
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

fn with_type(body: impl Into<Bytes>, kind: &'static str) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(body.into()));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}
