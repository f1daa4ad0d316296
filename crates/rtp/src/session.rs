//! RTSP session of one player: forwards requests to the server over both links, and responses to the player.
//!
//! - Requests take the primary link. Repeatable ones take the secondary link as well, and the first successful response goes to the
//!   player (see [`proto`](crate::proto)); a later one is dropped.
//! - URLs name this listener towards the player and the server towards the server, so that the player's next request arrives here.
//! - Media takes UDP. A player that wants it interleaved on the RTSP connection gets status 461, after which players try UDP (RFC
//!   2326 section 11.3.13).
//! - When the primary connection is lost, the secondary one carries all requests, since a session is identified by its identifier
//!   rather than by its connection.
//! - When a player disconnects, this module sends TEARDOWN, in case the player has not.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::base_layer_session::{self, SessionCommand};
use crate::proto::rtsp::{Message, is_repeatable};
use crate::proto::rtsp_transport::{PortPair, Transport};
use crate::proto::sdp::{VideoTrack, first_video_track};
use crate::proto::url_rewrite::replace_authority;
use crate::proto::{DuplicatedRequest, LinkRole};
use crate::rtsp_conn::{RtspEvent, Side, connect, read, write};
use crate::run_state::Shared;
use crate::track::{Track, TrackPeers};

/// State of one player.
struct Session {
    shared: Rc<Shared>,
    player: OwnedWriteHalf,
    primary: Option<OwnedWriteHalf>,
    secondary: Option<OwnedWriteHalf>,
    /// Authority by which the player addresses this listener, from its first request.
    local_authority: Option<String>,
    /// Authorities by which the server may call itself, the most probable first.
    server_authorities: Vec<String>,
    /// Requests without a response, by `CSeq`.
    pending: BTreeMap<String, PendingRequest>,
    /// Peers of each track. A track task ends when its sender is dropped.
    tracks: Vec<watch::Sender<TrackPeers>>,
    /// Video track of the last session description.
    video: Option<VideoTrack>,
    /// Commands to the base-layer session, which ends when this is dropped.
    base_layer_commands: Option<mpsc::UnboundedSender<SessionCommand>>,
    /// Session identifier and URL at the server.
    session: Option<(String, String)>,
}

/// A request without a response.
struct PendingRequest {
    duplicate: DuplicatedRequest<Message>,
    since: Instant,
    /// For SETUP: the peers of the track, the ports to announce to the player, and the transport that it requested.
    setup: Option<(watch::Sender<TrackPeers>, PortPair, Transport)>,
}

/// Serves one player until it or both server connections close, or the run is shut down.
pub(crate) async fn run(shared: Rc<Shared>, player: TcpStream) {
    shared.count(|stats| stats.sessions += 1);
    let Ok(ip) = player.peer_addr().map(|peer| peer.ip()) else { return };
    let (event_tx, mut events) = mpsc::channel(16);
    let stream = &shared.stream;
    let (primary, secondary) =
        tokio::join!(connect(&stream.primary, shared.server), connect(&stream.secondary, shared.server));
    let attach = |name: &str, link, connected: std::io::Result<TcpStream>| match connected {
        Ok(connected) => {
            let (reader, writer) = connected.into_split();
            tokio::task::spawn_local(read(Side::Server(link), reader, event_tx.clone()));
            Some(writer)
        }
        Err(error) => {
            shared.warn(&format!("cannot connect to {} over {name}: {error}", shared.stream.url.authority));
            None
        }
    };
    let (primary, secondary) = (
        attach(&stream.primary, LinkRole::Primary, primary),
        attach(&stream.secondary, LinkRole::Secondary, secondary),
    );
    if primary.is_none() && secondary.is_none() {
        return;
    }
    let (reader, writer) = player.into_split();
    tokio::task::spawn_local(read(Side::Player, reader, event_tx));
    let server_authorities = stream.url.authorities(shared.server);
    let mut session = Session {
        player: writer,
        primary,
        secondary,
        local_authority: None,
        server_authorities,
        pending: BTreeMap::new(),
        tracks: Vec::new(),
        video: None,
        base_layer_commands: None,
        session: None,
        shared: Rc::clone(&shared),
    };
    let mut expiry = tokio::time::interval(EXPIRY_INTERVAL);
    let mut shutdown = shared.shutdown.subscribe();
    loop {
        tokio::select! {
            Some(event) = events.recv() => if !session.handle_event(event, ip).await {
                break;
            },
            _ = expiry.tick() => session.expire().await,
            _ = shutdown.wait_for(|is_set| *is_set) => break,
        }
    }
    session.teardown().await;
}

impl Session {
    /// Handles a message or the end of a connection. Returns `false` when the session is over.
    async fn handle_event(&mut self, event: RtspEvent, ip: IpAddr) -> bool {
        let RtspEvent { from, message, error } = event;
        match (from, message) {
            (Side::Player, Some(message)) if message.method().is_some() => self.handle_request(message, ip).await,
            // A response to a request of the server, which arrived over the primary link.
            (Side::Player, Some(message)) => self.send(LinkRole::Primary, &message).await,
            (Side::Player, None) => return false,
            (Side::Server(link), Some(message)) => {
                if message.status().is_some() {
                    self.handle_response(link, message).await;
                } else if link == LinkRole::Primary {
                    self.send_to_player(message).await;
                }
            }
            (Side::Server(link), None) => {
                if let Some(error) = error {
                    self.shared.warn(&format!("{}: {error}", self.shared.stream.url.authority));
                }
                self.connection_lost(link).await;
                return self.primary.is_some() || self.secondary.is_some();
            }
        }
        true
    }

    /// Forwards a request of the player.
    async fn handle_request(&mut self, mut request: Message, ip: IpAddr) {
        self.shared.count(|stats| stats.requests += 1);
        let Some(cseq) = request.cseq().map(str::to_owned) else {
            return self.send_to_player(Message::response(400, "Bad Request", "0")).await;
        };
        if self.local_authority.is_none() {
            let after = request.uri().and_then(|uri| uri.strip_prefix("rtsp://"));
            self.local_authority = after.and_then(|after| after.split(['/', '?']).next()).map(str::to_owned);
        }
        let mut setup = None;
        if request.method() == Some("SETUP") {
            let transport = request.header("Transport").and_then(Transport::parse);
            let Some(transport) = transport.filter(|_| self.tracks.len() < MAX_TRACKS) else {
                return self.send_to_player(Message::response(461, "Unsupported Transport", &cseq)).await;
            };
            match self.open_track(&request, &transport, ip) {
                Ok((peers, local, server_side_ports)) => {
                    request.set_header("Transport", &transport.to_header(server_side_ports, None));
                    setup = Some((peers, local, transport));
                }
                Err(error) => {
                    self.shared.warn(&format!("cannot open the sockets of a track: {error}"));
                    return self.send_to_player(Message::response(500, "Internal Server Error", &cseq)).await;
                }
            }
        }
        self.command_base_layer(&request);
        let request = self.rewrite_for_server(request);
        let both = is_repeatable(&request) && self.primary.is_some() && self.secondary.is_some();
        let (primary, secondary) = (self.primary.is_some(), both || self.primary.is_none());
        if both {
            self.shared.count(|stats| stats.duplicated += 1);
        }
        if self.pending.len() < MAX_PENDING {
            self.pending.insert(
                cseq,
                PendingRequest {
                    duplicate: DuplicatedRequest::new(primary, secondary),
                    since: Instant::now(),
                    setup,
                },
            );
        }
        for (link, wanted) in [(LinkRole::Secondary, secondary), (LinkRole::Primary, primary)] {
            if wanted {
                self.send(link, &request).await;
            }
        }
    }

    /// Opens the sockets of a track and starts its task. Returns its peers, the ports for the player and the ports for the server.
    fn open_track(
        &mut self,
        request: &Message,
        transport: &Transport,
        ip: IpAddr,
    ) -> std::io::Result<(watch::Sender<TrackPeers>, PortPair, PortPair)> {
        let uri = request.uri().unwrap_or_default();
        let is_video = self.video.as_ref().is_some_and(|video| {
            video.control.as_deref().is_none_or(|control| control == "*" || uri.ends_with(last_segment(control)))
        });
        let is_h264 = is_video && self.video.as_ref().is_some_and(|video| video.is_h264);
        let (peers_tx, peers) = watch::channel(TrackPeers { server: None, player: (ip, transport.client) });
        let with_base_layer = is_video && self.base_layer_commands.is_none();
        let track = Track::open(Rc::clone(&self.shared), peers, with_base_layer, is_h264)?;
        let ports = (track.player.ports()?, track.primary.ports()?);
        if let Some(sockets) = &track.base_layer {
            let (commands, receiver) = mpsc::unbounded_channel();
            let authorization = base_layer_authorization(request, self.shared.server, self.shared.base_layer);
            tokio::task::spawn_local(base_layer_session::run(
                Rc::clone(&self.shared),
                Rc::clone(sockets),
                authorization,
                receiver,
            ));
            self.base_layer_commands = Some(commands);
        }
        tokio::task::spawn_local(track.run());
        Ok((peers_tx, ports.0, ports.1))
    }

    /// Repeats PLAY and PAUSE for the base layer.
    fn command_base_layer(&self, request: &Message) {
        let command = match request.method() {
            Some("PLAY") => SessionCommand::Play(request.header("Range").map(str::to_owned)),
            Some("PAUSE") => SessionCommand::Pause,
            _ => return,
        };
        if let Some(commands) = &self.base_layer_commands {
            // Fails only if the base-layer session has ended, which it has reported.
            let _ = commands.send(command);
        }
    }

    /// Handles a response of the server.
    async fn handle_response(&mut self, link: LinkRole, message: Message) {
        // A request that was answered already is no longer pending: drop the second response.
        let Some(cseq) = message.cseq().map(str::to_owned) else { return };
        let Some(pending) = self.pending.get_mut(&cseq) else { return };
        let is_good = message.status().is_some_and(|status| status < 400);
        if let Some(response) = pending.duplicate.on_response(link, is_good, message) {
            let pending = self.pending.remove(&cseq);
            if link == LinkRole::Secondary && self.primary.is_some() {
                self.shared.count(|stats| stats.answered_by_secondary += 1);
            }
            self.forward_response(response, pending.and_then(|pending| pending.setup)).await;
        }
    }

    /// Forwards a response to the player, with the ports of this process in place of those of the server.
    async fn forward_response(
        &mut self,
        mut response: Message,
        setup: Option<(watch::Sender<TrackPeers>, PortPair, Transport)>,
    ) {
        let is_good = response.status().is_some_and(|status| status < 300);
        if let Some((peers, local, transport)) = setup.filter(|_| is_good) {
            let Some(announced) = response.header("Transport").and_then(Transport::parse) else {
                let cseq = response.cseq().unwrap_or("0").to_owned();
                return self.send_to_player(Message::response(461, "Unsupported Transport", &cseq)).await;
            };
            let ip = announced.source.as_ref().and_then(|source| source.parse().ok());
            let server = announced.server.map(|ports| (ip.unwrap_or(self.shared.server.ip()), ports));
            peers.send_modify(|peers| peers.server = server);
            self.tracks.push(peers);
            response.set_header("Transport", &transport.to_header(transport.client, Some(local)));
            let uri = self.shared.stream.url.uri();
            self.session = response.session_id().map(|id| (id.to_owned(), uri));
        }
        if is_good && response.header("Content-Type").is_some_and(|kind| kind.starts_with("application/sdp")) {
            self.video = first_video_track(&String::from_utf8_lossy(&response.body));
        }
        self.send_to_player(response).await;
    }

    /// Sends a message to the player, with the URLs of this listener.
    async fn send_to_player(&mut self, mut message: Message) {
        if let Some(local) = self.local_authority.clone() {
            let rewrite = |text: &str| {
                self.server_authorities
                    .iter()
                    .fold(text.to_owned(), |text, server| replace_authority(&text, server, &local))
            };
            message.start_line = rewrite(&message.start_line);
            message.headers.iter_mut().for_each(|(_, value)| *value = rewrite(value));
            if let Ok(body) = std::str::from_utf8(&message.body) {
                message.body = rewrite(body).into_bytes();
            }
        }
        // If the player is gone, its reader reports the end of the connection.
        let _ = write(&mut self.player, &message).await;
    }

    /// Replaces the URLs of this listener by those of the server.
    fn rewrite_for_server(&self, mut message: Message) -> Message {
        if let Some(local) = &self.local_authority {
            let server = &self.shared.stream.url.authority;
            message.start_line = replace_authority(&message.start_line, local, server);
            for (name, value) in &mut message.headers {
                // A digest covers the URL that the player knows.
                if !name.eq_ignore_ascii_case("Authorization") {
                    *value = replace_authority(value, local, server);
                }
            }
        }
        message
    }

    /// Sends a message over one link.
    async fn send(&mut self, link: LinkRole, message: &Message) {
        let connection = match link {
            LinkRole::Primary => &mut self.primary,
            LinkRole::Secondary => &mut self.secondary,
        };
        let Some(connection) = connection else { return };
        if write(connection, message).await.is_err() {
            self.connection_lost(link).await;
        }
    }

    /// Handles the loss of a server connection.
    async fn connection_lost(&mut self, link: LinkRole) {
        match link {
            LinkRole::Primary => self.primary = None,
            LinkRole::Secondary => self.secondary = None,
        }
        self.settle_refused(link, Duration::ZERO).await;
    }

    /// Forwards error responses that have waited long enough for the other link.
    async fn expire(&mut self) {
        self.settle_refused(LinkRole::Primary, REFUSAL_WAIT).await;
        self.settle_refused(LinkRole::Secondary, REFUSAL_WAIT).await;
        // Without any response the player repeats its request.
        self.pending.retain(|_, pending| pending.since.elapsed() < REQUEST_TIMEOUT);
    }

    /// Stops waiting for one link in requests that are older than `after` and have got an error over the other link. Zero means that the
    /// link is lost, and applies to all requests.
    async fn settle_refused(&mut self, link: LinkRole, after: Duration) {
        let mut settled = Vec::new();
        for (cseq, pending) in &mut self.pending {
            let is_refused = pending.duplicate.is_refused() || after.is_zero();
            if is_refused && pending.since.elapsed() >= after {
                settled.extend(pending.duplicate.on_link_lost(link).map(|response| (cseq.clone(), response)));
            }
        }
        for (cseq, response) in settled {
            let pending = self.pending.remove(&cseq);
            Box::pin(self.forward_response(response, pending.and_then(|pending| pending.setup))).await;
        }
    }

    /// Ends the session at the server over both links, if one is open.
    async fn teardown(&mut self) {
        let Some((id, uri)) = self.session.take() else { return };
        let mut teardown = Message::request("TEARDOWN", &uri);
        teardown.set_header("CSeq", "999999");
        teardown.set_header("Session", &id);
        for link in [LinkRole::Secondary, LinkRole::Primary] {
            self.send(link, &teardown).await;
        }
    }
}

/// The credentials that the base-layer session may use: only if its server is the one for which the player gave them.
fn base_layer_authorization(request: &Message, server: SocketAddr, base: Option<SocketAddr>) -> Option<String> {
    request.header("Authorization").filter(|_| base == Some(server)).map(str::to_owned)
}

/// Last path segment of a control URL. Players build the part before it in different ways.
fn last_segment(control: &str) -> &str {
    control.rsplit('/').next().unwrap_or(control)
}

/// Requests without a response that are tracked: far more than players send at once. Responses to further ones are dropped.
const MAX_PENDING: usize = 64;
/// Tracks of a session: video, and some audio and text tracks.
const MAX_TRACKS: usize = 8;
/// Interval of [`Session::expire`].
const EXPIRY_INTERVAL: Duration = Duration::from_millis(250);
/// How long an error response waits for the other link: two RTTs of a slow link.
const REFUSAL_WAIT: Duration = Duration::from_secs(1);
/// When a request without response is forgotten. Players give up sooner.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_go_to_the_server_that_requested_them_and_to_no_other() {
        let mut request = Message::request("SETUP", "rtsp://192.0.2.1/film");
        let [server, port, host] =
            ["192.0.2.1:554", "192.0.2.1:8554", "192.0.2.2:554"].map(|text| text.parse().unwrap());
        assert_eq!(base_layer_authorization(&request, server, Some(server)), None, "the player gave none");
        request.set_header("Authorization", "Basic bTpw");
        assert_eq!(base_layer_authorization(&request, server, Some(server)).as_deref(), Some("Basic bTpw"));
        for other in [Some(port), Some(host), None] {
            assert_eq!(base_layer_authorization(&request, server, other), None, "{other:?}");
        }
    }
}
