//! HTTP handlers of the API: parse a request, call the coordinator, serialize the reply or a [`Problem`].
//!
//! 1. The caller's identity comes from its certificate. The certificate is checked again at each request, because connections are
//!    long-lived and it may have expired or been revoked since the handshake.
//! 2. A body has at most [`MAX_BODY`] bytes (a relay's heartbeat [`MAX_HEARTBEAT_BODY`]), must arrive in time, must be declared
//!    `application/json`, and must not contain unknown fields.
//! 3. A process that is not the leader forwards requests to the leader ([`leader_proxy`](super::leader_proxy)). If the leader cannot
//!    be reached, heartbeats are answered from local knowledge; all other requests fail with 503 `not_leading`, and edges keep
//!    the assignments they have.
//! 4. Only a process of the service (role `fleet`) may act on behalf of another member: it names the member in [`FOR_HEADER`]. The
//!    header is ignored in requests of all other roles.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::{HeaderMap, Request, Response, StatusCode};
use marline_core::fleet::Position;
use marline_core::fleet::scheduling::{FleetScheduler, Input, Proximity, Reply};
use rustls::pki_types::CertificateDer;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::api_types::{
    AssignmentReply, AssignmentRequest, DrainReply, DrainRequest, EnrolReply, Heartbeat, Report,
};
use super::client::{CallerProcess, FOR_ADDRESS_HEADER, FOR_HEADER, FOR_UNTIL_HEADER, INSTANCE_HEADER};
use super::coordinator::{Coordinator, unavailable};
use super::problem::{Problem, response_with_type};
use super::routes::{self, Route};
use crate::ca::IssuedChain;
use crate::identity::{Name, Role};
use crate::tls::{Peer, is_valid_for};

/// The largest request body in bytes, except for heartbeats.
pub const MAX_BODY: usize = 64 * 1024;
/// The largest heartbeat body in bytes. After a restart of the service one heartbeat lists every reservation that the relay holds:
/// up to 16,384 names of 63 letters, each with its rate.
pub(super) const MAX_HEARTBEAT_BODY: usize = 2 << 20;
/// How long an edge's request for a relay waits for the matching; then the reply is `pending`.
const DECISION_WAIT: Duration = Duration::from_secs(2);
const API_DESCRIPTION: &str = include_str!("../../../../docs/fleet-api.json");

/// The authenticated caller of a request, with the certificate from its TLS handshake.
pub(super) struct Caller {
    pub(super) peer: Peer,
    pub(super) certificate: CertificateDer<'static>,
    pub(super) address: IpAddr,
}

/// Handles one request; every failure becomes a problem response. `body_timeout` limits the reading of the body.
pub(super) async fn respond(
    coordinator: &Arc<Coordinator>,
    caller: Option<&Caller>,
    request: Request<Incoming>,
    body_timeout: Duration,
) -> Response<Full<Bytes>> {
    match route(coordinator, caller, request, body_timeout).await {
        Ok(answer) => answer,
        Err(problem) => problem.to_response(),
    }
}

async fn route(
    coordinator: &Arc<Coordinator>,
    caller: Option<&Caller>,
    request: Request<Incoming>,
    body_timeout: Duration,
) -> Result<Response<Full<Bytes>>, Problem> {
    let peer = caller.map(|caller| &caller.peer);
    if let Some(peer) = peer {
        coordinator.check(peer).map_err(|error| Problem::not_allowed(error.to_string()))?;
    }
    let on_behalf_of = read_on_behalf_of(peer, request.headers())?;
    let process = caller_process(caller, on_behalf_of.is_some(), request.headers());
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let (route, path) = routes::find_route(&method, uri.path(), on_behalf_of.as_ref().or(peer))?;
    let body = if route.has_body() { read_body(route, request, body_timeout).await? } else { Bytes::new() };
    match route {
        Route::OpenApi => return Ok(response_with_type(API_DESCRIPTION, "application/json")),
        Route::Health => {
            return json(&serde_json::json!({"status": if coordinator.is_leader() { "ok" } else { "standby" }}));
        }
        Route::RevocationList => return Ok(response_with_type(crl_pem(coordinator), "application/x-pem-file")),
        Route::Service => return json(&coordinator.status()),
        Route::Enrol => return enrol_reply(coordinator, coordinator.enrol(parse(&body)?).await?),
        Route::Renew => {
            // A process that forwards for others may renew only its own certificate, never that of the member in the header.
            let presented_by =
                caller.ok_or_else(|| Problem::not_allowed("a client certificate of this fleet is required"))?;
            return enrol_reply(coordinator, coordinator.renew(presented_by.certificate.clone()).await?);
        }
        _ => {}
    }
    if let (Route::Heartbeat, None, Some(caller)) = (route, &on_behalf_of, caller) {
        check_announced(&parse(&body)?, &caller.certificate)?;
    }
    let member = on_behalf_of
        .as_ref()
        .or(peer)
        .ok_or_else(|| Problem::not_allowed("a client certificate of this fleet is required"))?;
    let query = uri.query().unwrap_or_default();
    if coordinator.is_leader() {
        return handle_as_leader(coordinator, (route, path), (member, process), query, &body).await;
    }
    // A forwarded request is not forwarded again: no process leads, or the other process has an outdated view of the leader.
    let forwarded = match on_behalf_of {
        None => {
            coordinator
                .forward_to_leader(
                    (member, process),
                    &method,
                    uri.path_and_query().map_or("/", |path_and_query| path_and_query.as_str()),
                    &body,
                )
                .await
        }
        Some(_) => None,
    };
    match forwarded {
        Some(answer) => Ok(answer),
        // Rule 3: a relay gets a reply even without a leader.
        None if route == Route::Heartbeat => {
            handle_as_leader(coordinator, (route, path), (member, process), query, &body).await
        }
        None => {
            Err(unavailable("not_leading", "no process of the fleet service is known to be the leader; try again"))
        }
    }
}

/// Refuses a heartbeat that announces a host for which the relay's certificate is not valid: edges would connect to a host of the
/// relay's choice. Only the process that received the certificate checks this; a forwarded heartbeat has been checked by the sender.
fn check_announced(heartbeat: &Heartbeat, certificate: &CertificateDer<'_>) -> Result<(), Problem> {
    let refused = |host: &str| {
        Problem::not_allowed(format!(
            "`{host}` is announced, but the relay's certificate is not valid for that name or address"
        ))
    };
    if !is_valid_for(certificate, &heartbeat.server_name) {
        return Err(refused(&heartbeat.server_name.to_string()));
    }
    for endpoint in &heartbeat.addresses {
        let host = endpoint.host();
        if !host.parse().is_ok_and(|address| is_valid_for(certificate, &address)) {
            return Err(refused(&host));
        }
    }
    Ok(())
}

/// The member on whose behalf another process of the service calls; none: the caller acts for itself (rule 4).
fn read_on_behalf_of(peer: Option<&Peer>, headers: &HeaderMap) -> Result<Option<Peer>, Problem> {
    let Some(peer) = peer.filter(|peer| peer.identity.role == Role::Fleet) else { return Ok(None) };
    let Some(header) = headers.get(FOR_HEADER) else { return Ok(None) };
    let identity = header.to_str().unwrap_or_default().parse().map_err(Problem::malformed)?;
    let until = headers.get(FOR_UNTIL_HEADER).and_then(|until| until.to_str().ok()?.parse().ok());
    Ok(Some(Peer { identity, not_after: until.unwrap_or(peer.not_after), ..peer.clone() }))
}

/// The calling process of a member, by its instance number and address. None: the request carries no instance number.
fn caller_process(caller: Option<&Caller>, is_forwarded: bool, headers: &HeaderMap) -> Option<CallerProcess> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    let address = if is_forwarded { text(FOR_ADDRESS_HEADER)?.parse().ok()? } else { caller?.address };
    Some(CallerProcess { instance: text(INSTANCE_HEADER)?.parse().ok()?, address })
}

/// Handles the requests that need the scheduler. Runs on the leader, and for heartbeats also on a process without a reachable leader.
async fn handle_as_leader(
    coordinator: &Arc<Coordinator>,
    (route, path): (Route, Option<Name>),
    (peer, process): (&Peer, Option<CallerProcess>),
    query: &str,
    body: &[u8],
) -> Result<Response<Full<Bytes>>, Problem> {
    let name = &peer.identity.name;
    if let Route::Heartbeat | Route::Request | Route::Report = route {
        coordinator.note_certificate(peer);
        if let Some(origin) = process {
            coordinator.note_process(&peer.identity, origin);
        }
    }
    match route {
        Route::Heartbeat => {
            let heartbeat = parse::<Heartbeat>(body)?;
            let Reply::Heartbeat(mut reply) = reply_to(coordinator, Input::Heartbeat(name.clone(), heartbeat))?
            else {
                return Err(unexpected_reply());
            };
            reply.revocations = coordinator.trusted().revocations.number();
            json(&reply)
        }
        Route::Request => request_relay(coordinator, name, parse(body)?).await,
        Route::Report => {
            let report = parse::<Report>(body)?;
            assignment_reply(coordinator, Input::Report(name.clone(), report))
        }
        Route::Release => assignment_reply(coordinator, Input::Release(name.clone())),
        Route::Candidates => {
            let proximity = parse_proximity(query).map_err(Problem::malformed)?;
            let Reply::Candidates(found) = reply_to(coordinator, Input::Candidates(name.clone(), proximity))?
            else {
                return Err(unexpected_reply());
            };
            json(&found)
        }
        Route::Drain => drain(coordinator, name, path, parse(body)?).await,
        Route::Relays => {
            let mut rows = coordinator.read_updated(FleetScheduler::relay_summaries);
            coordinator.fill_certificate_ends(
                Role::Relay,
                rows.iter_mut().map(|row| (&row.name, &mut row.certificate_not_after)),
            );
            coordinator
                .fill_duplicates(Role::Relay, rows.iter_mut().map(|row| (&row.name, &mut row.duplicate_addresses)));
            json(&rows)
        }
        Route::Edges => {
            let mut rows = coordinator.read_updated(FleetScheduler::edge_summaries);
            coordinator.fill_certificate_ends(
                Role::Edge,
                rows.iter_mut().map(|row| (&row.name, &mut row.certificate_not_after)),
            );
            coordinator
                .fill_duplicates(Role::Edge, rows.iter_mut().map(|row| (&row.name, &mut row.duplicate_addresses)));
            json(&rows)
        }
        // `route` has answered these already, without the scheduler.
        Route::OpenApi | Route::Health | Route::RevocationList | Route::Service | Route::Enrol | Route::Renew => {
            Err(unavailable("not_leading", "this request is not meant for the leader"))
        }
    }
}

/// The scheduler's reply to an input.
fn reply_to(coordinator: &Arc<Coordinator>, input: Input) -> Result<Reply, Problem> {
    match coordinator.handle(input) {
        Some(Reply::Rejected(why)) => Err(unprocessable(why)),
        Some(reply) => Ok(reply),
        None => Err(unexpected_reply()),
    }
}

/// The response with the edge's assignment.
fn assignment_reply(coordinator: &Arc<Coordinator>, input: Input) -> Result<Response<Full<Bytes>>, Problem> {
    match reply_to(coordinator, input)? {
        Reply::Assignment(reply) => json(&with_crl_number(coordinator, reply)),
        _ => Err(unexpected_reply()),
    }
}

/// Not reached: the scheduler replies to each input with its kind of reply.
fn unexpected_reply() -> Problem {
    unavailable("answer", "the scheduler has no reply of this kind")
}

/// Adds the number of the newest revocation list to a reply.
fn with_crl_number(coordinator: &Coordinator, reply: AssignmentReply) -> AssignmentReply {
    AssignmentReply { revocations: coordinator.trusted().revocations.number(), ..reply }
}

fn enrol_reply(coordinator: &Coordinator, chain: IssuedChain) -> Result<Response<Full<Bytes>>, Problem> {
    let authority = coordinator.trusted().other_authorities.to_bundle_pem(&chain.issuer);
    json(&EnrolReply { certificate: chain.pem(), authority, not_after: chain.record.not_after.to_string() })
}

async fn request_relay(
    coordinator: &Arc<Coordinator>,
    edge: &Name,
    request: AssignmentRequest,
) -> Result<Response<Full<Bytes>>, Problem> {
    let decision = coordinator.decision(edge);
    if let Some(Reply::Rejected(why)) = coordinator.handle(Input::Request(edge.clone(), request)) {
        return Err(unprocessable(why));
    }
    // After a timeout the reply is `pending`. The edge keeps its position in the queue and can simply repeat the request.
    let _ = tokio::time::timeout(DECISION_WAIT, decision).await;
    if !coordinator.is_leader() {
        return Err(unavailable("not_leading", "this process is no longer the leader; try again"));
    }
    json(&with_crl_number(coordinator, coordinator.read(|scheduler| scheduler.reply_for(edge))))
}

async fn drain(
    coordinator: &Arc<Coordinator>,
    operator: &Name,
    relay: Option<Name>,
    drain: DrainRequest,
) -> Result<Response<Full<Bytes>>, Problem> {
    let relay = relay.ok_or_else(|| Problem::malformed("the path names no relay"))?;
    let known = coordinator.read(|scheduler| scheduler.has_relay(&relay));
    let durable =
        coordinator.drain(operator, relay, drain.draining, drain.duration_ms.map(Duration::from_millis)).await;
    json(&DrainReply { known, durable })
}

/// Reads a request body within the limits of rule 2.
async fn read_body(route: Route, request: Request<Incoming>, body_timeout: Duration) -> Result<Bytes, Problem> {
    let media_type = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    // A browser cannot send this media type across sites without a CORS preflight, which this API does not answer.
    if media_type.split(';').next().map(str::trim) != Some("application/json") {
        let detail = "the request needs `Content-Type: application/json`";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "media_type", detail));
    }
    let longest = if route == Route::Heartbeat { MAX_HEARTBEAT_BODY } else { MAX_BODY };
    let too_long = || {
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_long", format!("the body is longer than {longest} bytes"))
    };
    if request.body().size_hint().lower() > longest as u64 {
        return Err(too_long());
    }
    let read = tokio::time::timeout(body_timeout, Limited::new(request.into_body(), longest).collect()).await;
    let read =
        read.map_err(|_| Problem::new(StatusCode::REQUEST_TIMEOUT, "slow", "the body did not arrive in time"))?;
    let read = read.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
        Some(_) => too_long(),
        None => Problem::malformed(format!("the body is incomplete: {error}")),
    })?;
    Ok(read.to_bytes())
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    // serde_json's error names the field. It can quote a value of the wrong type, but never a token, because its field is a string.
    serde_json::from_slice(body).map_err(|error| Problem::malformed(format!("cannot parse the body: {error}")))
}

fn parse_proximity(query: &str) -> Result<Proximity, String> {
    let (mut latitude, mut longitude, mut proximity) = (None, None, Proximity::default());
    for (key, value) in url::form_urlencoded::parse(query.as_bytes()) {
        let degrees =
            || value.parse::<f64>().map_err(|_| format!("`{value}` is not a number of degrees such as 50.1"));
        match &*key {
            "latitude" => latitude = Some(degrees()?),
            "longitude" => longitude = Some(degrees()?),
            "origin" => proximity.origin = Some(value.parse()?),
            other => return Err(format!("unknown parameter `{other}`: use latitude, longitude, origin")),
        }
    }
    proximity.position = match (latitude, longitude) {
        (Some(latitude), Some(longitude)) => Some(Position::new(latitude, longitude)?),
        (None, None) => None,
        _ => return Err("give both latitude and longitude, or neither".to_owned()),
    };
    Ok(proximity)
}

fn unprocessable(text: String) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "impossible", text)
}

/// The revocation list in PEM, the format in which relays store it.
fn crl_pem(coordinator: &Coordinator) -> String {
    crate::ca::pem_encode("X509 CRL", &coordinator.trusted().revocations.crl_der())
}

fn json(value: &impl Serialize) -> Result<Response<Full<Bytes>>, Problem> {
    let text = serde_json::to_vec(value).map_err(|error| unavailable("answer", error.to_string()))?;
    Ok(response_with_type(text, "application/json"))
}
