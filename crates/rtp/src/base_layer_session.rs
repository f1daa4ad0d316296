//! RTSP session of the base layer over the secondary link (Super-aggregation section 5.1.3).
//!
//! It is set up together with the video track of the player's session and follows its commands, so that both begin at the same time. It
//! sends keep-alive requests while it plays. A failure (no such stream, no video track, no UDP) is reported once, and the stream
//! continues without the base layer.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::mpsc;

use crate::proto::LinkRole;
use crate::proto::rtsp::Message;
use crate::proto::rtsp_transport::Transport;
use crate::proto::sdp::{control_url, first_video_track};
use crate::rtsp_conn::{RtspEvent, Side, connect, read, write};
use crate::run_state::Shared;
use crate::sockets::SocketPair;

/// Command of the player that the base layer follows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SessionCommand {
    /// Play this range, or continue at the current position.
    Play(Option<String>),
    /// Stop sending, keep the session.
    Pause,
}

/// Client side of the RTSP session.
struct Session {
    writer: OwnedWriteHalf,
    events: mpsc::Receiver<RtspEvent>,
    cseq: u32,
    session_id: Option<String>,
    authorization: Option<String>,
}

/// Runs the session until `commands` is closed. `authorization` is the player's `Authorization` header, if it may be sent to this server.
pub(crate) async fn run(
    shared: Rc<Shared>,
    sockets: Rc<SocketPair>,
    authorization: Option<String>,
    commands: mpsc::UnboundedReceiver<SessionCommand>,
) {
    let (Some(base), Some(server)) = (&shared.stream.base_layer, shared.base_layer) else { return };
    if let Err(reason) = run_session(&shared, &sockets, (&base.uri(), server), authorization, commands).await {
        let link = &shared.stream.secondary;
        shared.warn(&format!(
            "{}: the base layer over {link}: {reason}; the stream continues without it",
            base.uri()
        ));
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
    let track = first_video_track(&text).ok_or("the description has no video track")?;
    let session_url = described.header("Content-Base").unwrap_or(uri).to_owned();
    let track_url = control_url(&session_url, track.control.as_deref());

    let (media, rtcp) = sockets.ports().map_err(|error| error.to_string())?;
    let mut setup = Message::request("SETUP", &track_url);
    setup.set_header("Transport", &format!("RTP/AVP;unicast;client_port={media}-{rtcp}"));
    let response = session.request(setup).await?;
    let transport =
        response.header("Transport").and_then(Transport::parse).ok_or("the server does not offer RTP over UDP")?;
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
                    // Opens the NAT mapping for the media. Servers ignore empty packets.
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
        let outcome = session.request(request).await;
        if command.is_none() {
            // A server that does not respond to TEARDOWN times the session out.
            return Ok(());
        }
        outcome?;
    }
}

impl Session {
    /// Sends a request and waits for its response. Any status but 2xx is an error.
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
                        return Err(event
                            .error
                            .map_or("the server closed the connection".to_owned(), |error| error.to_string()));
                    }
                }
            }
            Err("the server closed the connection".to_owned())
        });
        let response = response
            .await
            .map_err(|_| format!("{method}: no response"))?
            .map_err(|error| format!("{method}: {error}"))?;
        match response.status() {
            Some(200..300) => Ok(response),
            _ => Err(format!(
                "the server answers {method} with `{}`",
                response.start_line.trim_start_matches("RTSP/1.0 ")
            )),
        }
    }
}

/// A third of the default session timeout of 60 s (RFC 2326 section 12.37).
const KEEPALIVE: Duration = Duration::from_secs(20);
/// Longer than an outage of a few seconds, after which the base layer continues.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// RTP packet without payload.
const EMPTY_RTP: [u8; 12] = [0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// RTCP receiver report without report blocks.
const EMPTY_RECEIVER_REPORT: [u8; 8] = [0x80, 201, 0, 1, 0, 0, 0, 0];
