//! The base layer's own session, over the second link (Super-aggregation §5.1.3).
//!
//! In: the base layer's address, ports for it, what the player does. Out: a session that plays while the player's does.
//!
//! 1. It is made when the player makes its own, so that it begins at the same time.
//! 2. Whatever goes wrong is said once, and the stream goes on without it: no such stream, no such track, not over UDP.
//! 3. It says that it lives while it plays, in time for servers that wait a minute (RFC 2326 §12.37).

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::mpsc;

use crate::listener::Shared;
use crate::proto::LinkRole;
use crate::proto::rtsp::Message;
use crate::proto::rtsp_transport::Transport;
use crate::proto::sdp::{control_url, first_video_track};
use crate::rtsp_conn::{RtspEvent, Side, connect, read, write};
use crate::sockets::SocketPair;

/// What the player has asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SessionCommand {
    /// With this range, or from where it is.
    Play(Option<String>),
    Pause,
}

/// A session's state.
struct Session {
    writer: OwnedWriteHalf,
    events: mpsc::Receiver<RtspEvent>,
    cseq: u32,
    session_id: Option<String>,
    authorization: Option<String>,
}

/// Runs until nobody orders any more. `authorization`: what the player told the server, if it did.
pub(crate) async fn run(
    shared: Rc<Shared>,
    sockets: Rc<SocketPair>,
    authorization: Option<String>,
    commands: mpsc::UnboundedReceiver<SessionCommand>,
) {
    let (Some(base), Some(server)) = (&shared.stream.base_layer, shared.base_layer) else { return };
    if let Err(reason) = run_session(&shared, &sockets, (&base.uri(), server), authorization, commands).await {
        let link = &shared.stream.secondary;
        shared
            .warn(&format!("{}: the base layer over {link}: {reason}; the stream goes on without it", base.uri()));
    }
}

async fn run_session(
    shared: &Shared,
    sockets: &SocketPair,
    (uri, server): (&str, SocketAddr),
    authorization: Option<String>,
    mut commands: mpsc::UnboundedReceiver<SessionCommand>,
) -> Result<(), String> {
    let connected =
        connect(&shared.stream.secondary, server).await.map_err(|error| format!("{server}: {error}"))?;
    let (reader, writer) = connected.into_split();
    let (event_tx, events) = mpsc::channel(8);
    tokio::task::spawn_local(read(Side::Server(LinkRole::Secondary), reader, event_tx));
    let mut session = Session { writer, events, cseq: 0, session_id: None, authorization };

    let mut describe = Message::request("DESCRIBE", uri);
    describe.set_header("Accept", "application/sdp");
    let described = session.request(describe).await?;
    let text = String::from_utf8_lossy(&described.body).into_owned();
    let track = first_video_track(&text).ok_or("it has no video over RTP")?;
    let session_url = described.header("Content-Base").unwrap_or(uri).to_owned();
    let track_url = control_url(&session_url, track.control.as_deref());

    let (media, rtcp) = sockets.ports().map_err(|error| error.to_string())?;
    let mut setup = Message::request("SETUP", &track_url);
    setup.set_header("Transport", &format!("RTP/AVP;unicast;client_port={media}-{rtcp}"));
    let response = session.request(setup).await?;
    let transport =
        response.header("Transport").and_then(Transport::parse).ok_or("the server does not send it over UDP")?;
    session.session_id = response.session_id().map(str::to_owned);
    let ip = transport.source.and_then(|source| source.parse().ok()).unwrap_or(server.ip());

    let mut is_playing = false;
    loop {
        let command = tokio::select! {
            command = commands.recv() => command,
            () = tokio::time::sleep(KEEPALIVE), if is_playing => {
                session.request(Message::request("OPTIONS", uri)).await?;
                continue;
            }
        };
        let request = match &command {
            Some(SessionCommand::Play(range)) => {
                if let Some(ports) = transport.server {
                    // An empty packet, so that NAT lets the answer in; a server leaves it.
                    let _ = sockets.media.send_to(&EMPTY_RTP, (ip, ports.0)).await;
                    let _ = sockets.rtcp.send_to(&EMPTY_RECEIVER_REPORT, (ip, ports.1)).await;
                }
                let mut play = Message::request("PLAY", &session_url);
                if let Some(range) = range {
                    play.set_header("Range", range);
                }
                play
            }
            Some(SessionCommand::Pause) => Message::request("PAUSE", &session_url),
            None => Message::request("TEARDOWN", &session_url),
        };
        is_playing = matches!(command, Some(SessionCommand::Play(_)));
        let done = session.request(request).await;
        if command.is_none() {
            // Whoever does not answer a farewell forgets the session by itself.
            return Ok(());
        }
        done?;
    }
}

impl Session {
    /// Asks, and waits for a good answer.
    async fn request(&mut self, mut request: Message) -> Result<Message, String> {
        self.cseq += 1;
        let cseq = self.cseq.to_string();
        request.set_header("CSeq", &cseq);
        request.set_header("User-Agent", concat!("marline/", env!("CARGO_PKG_VERSION")));
        if let Some(id) = &self.session_id {
            request.set_header("Session", id);
        }
        if let Some(authorization) = &self.authorization {
            request.set_header("Authorization", authorization);
        }
        let method = request.method().unwrap_or_default().to_owned();
        write(&mut self.writer, &request).await.map_err(|error| format!("{method}: {error}"))?;
        let response = tokio::time::timeout(RESPONSE_TIMEOUT, async {
            while let Some(event) = self.events.recv().await {
                match event.message {
                    Some(message) if message.status().is_some() && message.cseq() == Some(&cseq) => {
                        return Ok(message);
                    }
                    Some(_) => {}
                    None => {
                        return Err(event.error.map_or("the server closes".to_owned(), |why| why.to_string()));
                    }
                }
            }
            Err("the server closes".to_owned())
        });
        let response = response
            .await
            .map_err(|_| format!("{method}: no response"))?
            .map_err(|why| format!("{method}: {why}"))?;
        match response.status() {
            Some(200..300) => Ok(response),
            _ => Err(format!(
                "the server answers {method} with `{}`",
                response.start_line.trim_start_matches("RTSP/1.0 ")
            )),
        }
    }
}

/// chosen: a third of the minute that servers wait.
const KEEPALIVE: Duration = Duration::from_secs(20);
/// chosen: longer than a blackout of the second link that a player's own session would survive.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// A header of RTP without media.
const EMPTY_RTP: [u8; 12] = [0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// A receiver's report about nobody.
const EMPTY_RECEIVER_REPORT: [u8; 8] = [0x80, 201, 0, 1, 0, 0, 0, 0];
