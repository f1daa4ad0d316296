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
use crate::proto::Line;
use crate::proto::rtsp::Message;
use crate::proto::transport::{Transport, address, video};
use crate::rtsp_conn::{From, Heard, connect, read, write};
use crate::sockets::Pair;

/// What the player has asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// With this range, or from where it is.
    Play(Option<String>),
    Pause,
}

/// A session's state.
struct Session {
    half: OwnedWriteHalf,
    heard: mpsc::Receiver<Heard>,
    number: u32,
    name: Option<String>,
    authorization: Option<String>,
}

/// Runs until nobody orders any more. `authorization`: what the player told the server, if it did.
pub(crate) async fn run(
    shared: Rc<Shared>,
    pair: Rc<Pair>,
    authorization: Option<String>,
    orders: mpsc::UnboundedReceiver<Order>,
) {
    let (Some(base), Some(server)) = (&shared.stream.base, shared.base) else { return };
    if let Err(why) = mirror(&shared, &pair, (&base.uri(), server), authorization, orders).await {
        let link = &shared.stream.second;
        shared.say(&format!("{}: the base layer over {link}: {why}; the stream goes on without it", base.uri()));
    }
}

async fn mirror(
    shared: &Shared,
    pair: &Pair,
    (uri, server): (&str, SocketAddr),
    authorization: Option<String>,
    mut orders: mpsc::UnboundedReceiver<Order>,
) -> Result<(), String> {
    let connected = connect(&shared.stream.second, server).await.map_err(|error| format!("{server}: {error}"))?;
    let (reads, half) = connected.into_split();
    let (tell, heard) = mpsc::channel(8);
    tokio::task::spawn_local(read(From::Server(Line::Second), reads, tell));
    let mut session = Session { half, heard, number: 0, name: None, authorization };

    let mut describe = Message::request("DESCRIBE", uri);
    describe.set("Accept", "application/sdp");
    let described = session.ask(describe).await?;
    let text = String::from_utf8_lossy(&described.body).into_owned();
    let track = video(&text).ok_or("it has no video over RTP")?;
    let at = described.header("Content-Base").unwrap_or(uri).to_owned();
    let to = address(&at, track.control.as_deref());

    let (media, reports) = pair.ports().map_err(|error| error.to_string())?;
    let mut setup = Message::request("SETUP", &to);
    setup.set("Transport", &format!("RTP/AVP;unicast;client_port={media}-{reports}"));
    let answer = session.ask(setup).await?;
    let transport =
        answer.header("Transport").and_then(Transport::parse).ok_or("the server does not send it over UDP")?;
    session.name = answer.session().map(str::to_owned);
    let ip = transport.source.and_then(|source| source.parse().ok()).unwrap_or(server.ip());

    let mut is_playing = false;
    loop {
        let order = tokio::select! {
            order = orders.recv() => order,
            () = tokio::time::sleep(ALIVE), if is_playing => {
                session.ask(Message::request("OPTIONS", uri)).await?;
                continue;
            }
        };
        let request = match &order {
            Some(Order::Play(range)) => {
                if let Some(ports) = transport.server {
                    // An empty packet, so that NAT lets the answer in; a server leaves it.
                    let _ = pair.media.send_to(&OPENING, (ip, ports.0)).await;
                    let _ = pair.reports.send_to(&OPENING_REPORT, (ip, ports.1)).await;
                }
                let mut play = Message::request("PLAY", &at);
                if let Some(range) = range {
                    play.set("Range", range);
                }
                play
            }
            Some(Order::Pause) => Message::request("PAUSE", &at),
            None => Message::request("TEARDOWN", &at),
        };
        is_playing = matches!(order, Some(Order::Play(_)));
        let done = session.ask(request).await;
        if order.is_none() {
            // Whoever does not answer a farewell forgets the session by itself.
            return Ok(());
        }
        done?;
    }
}

impl Session {
    /// Asks, and waits for a good answer.
    async fn ask(&mut self, mut request: Message) -> Result<Message, String> {
        self.number += 1;
        let number = self.number.to_string();
        request.set("CSeq", &number);
        request.set("User-Agent", concat!("marline/", env!("CARGO_PKG_VERSION")));
        if let Some(name) = &self.name {
            request.set("Session", name);
        }
        if let Some(authorization) = &self.authorization {
            request.set("Authorization", authorization);
        }
        let method = request.method().unwrap_or_default().to_owned();
        write(&mut self.half, &request).await.map_err(|error| format!("{method}: {error}"))?;
        let answered = tokio::time::timeout(PATIENCE, async {
            while let Some(heard) = self.heard.recv().await {
                match heard.message {
                    Some(message) if message.status().is_some() && message.cseq() == Some(&number) => {
                        return Ok(message);
                    }
                    Some(_) => {}
                    None => {
                        return Err(heard.refusal.map_or("the server closes".to_owned(), |why| why.to_string()));
                    }
                }
            }
            Err("the server closes".to_owned())
        });
        let answer = answered
            .await
            .map_err(|_| format!("{method}: no answer"))?
            .map_err(|why| format!("{method}: {why}"))?;
        match answer.status() {
            Some(200..300) => Ok(answer),
            _ => {
                Err(format!("the server answers {method} with `{}`", answer.start.trim_start_matches("RTSP/1.0 ")))
            }
        }
    }
}

/// chosen: a third of the minute that servers wait.
const ALIVE: Duration = Duration::from_secs(20);
/// chosen: longer than a blackout of the second link that a player's own session would survive.
const PATIENCE: Duration = Duration::from_secs(10);
/// A header of RTP without media.
const OPENING: [u8; 12] = [0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// A receiver's report about nobody.
const OPENING_REPORT: [u8; 8] = [0x80, 201, 0, 1, 0, 0, 0, 0];
