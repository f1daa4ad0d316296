//! A player's session: requests to the server, answers to the player.
//!
//! In: a player's connection. Out: the same session at the server, over both links.
//!
//! 1. Requests go over the first link; what may be heard twice goes over the second as well, and the first good answer is the
//!    player's (`proto`). An answer that comes after it is left.
//! 2. Addresses in requests and answers are the server's there and ours here, so that the player comes back to us.
//! 3. Media goes over UDP; a player that wants it within the connection is told to try again (461, RFC 2326 §11.3.13).
//! 4. When the first connection is gone, the second takes the requests alone: a session is known by its name.
//! 5. A player that leaves without a word is signed off at the server.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::base_layer_session::{self as mirror, Order};
use crate::listener::Shared;
use crate::proto::rtsp::{Message, is_repeatable};
use crate::proto::transport::{self, Transport, moved, video};
use crate::proto::{Asked, Line};
use crate::rtsp_conn::{From, Heard, connect, read, write};
use crate::track::{Ends, Track};

struct Session {
    shared: Rc<Shared>,
    player: OwnedWriteHalf,
    first: Option<OwnedWriteHalf>,
    second: Option<OwnedWriteHalf>,
    /// As the player names us: host and port.
    here: Option<String>,
    /// How the server may name itself, the likeliest first.
    there: Vec<String>,
    open: BTreeMap<String, Open>,
    /// The tracks end with these.
    tracks: Vec<watch::Sender<Ends>>,
    /// The control of the video's track, once it was described.
    video: Option<transport::Track>,
    orders: Option<mpsc::UnboundedSender<Order>>,
    /// The session's name and address.
    name: Option<(String, String)>,
}

/// A request without an answer.
struct Open {
    asked: Asked<Message>,
    since: Instant,
    /// Of a SETUP: its track's ends, and the ports that the player is told; and its way of transport.
    setup: Option<(watch::Sender<Ends>, transport::Ports, Transport)>,
}

/// Serves a player until one of both leaves.
pub(crate) async fn run(shared: Rc<Shared>, player: TcpStream) {
    shared.count(|served| served.sessions += 1);
    let Ok(ip) = player.peer_addr().map(|peer| peer.ip()) else { return };
    let (tell, mut heard) = mpsc::channel(16);
    let stream = &shared.stream;
    let (first, second) =
        tokio::join!(connect(&stream.first, shared.server), connect(&stream.second, shared.server));
    let take = |name: &str, line, connected: std::io::Result<TcpStream>| match connected {
        Ok(connected) => {
            let (reads, writes) = connected.into_split();
            tokio::task::spawn_local(read(From::Server(line), reads, tell.clone()));
            Some(writes)
        }
        Err(error) => {
            shared.say(&format!("{} over {name}: {error}", shared.stream.address.authority));
            None
        }
    };
    let (first, second) = (take(&stream.first, Line::First, first), take(&stream.second, Line::Second, second));
    if first.is_none() && second.is_none() {
        return;
    }
    let (reads, writes) = player.into_split();
    tokio::task::spawn_local(read(From::Player, reads, tell));
    let there = stream.address.names(shared.server);
    let mut session = Session {
        player: writes,
        first,
        second,
        here: None,
        there,
        open: BTreeMap::new(),
        tracks: Vec::new(),
        video: None,
        orders: None,
        name: None,
        shared: Rc::clone(&shared),
    };
    let mut turn = tokio::time::interval(TURN);
    let mut end = shared.end.subscribe();
    loop {
        tokio::select! {
            Some(heard) = heard.recv() => if !session.on(heard, ip).await {
                break;
            },
            _ = turn.tick() => session.expire().await,
            _ = end.wait_for(|over| *over) => break,
        }
    }
    session.sign_off().await;
}

impl Session {
    /// Something was said; false: this is the end.
    async fn on(&mut self, heard: Heard, ip: IpAddr) -> bool {
        let Heard { from, message, refusal } = heard;
        match (from, message) {
            (From::Player, Some(message)) if message.method().is_some() => self.ask(message, ip).await,
            // An answer to what the server asked.
            (From::Player, Some(message)) => self.send(Line::First, &message).await,
            (From::Player, None) => return false,
            (From::Server(line), Some(message)) => {
                if message.status().is_some() {
                    self.answered(line, message).await;
                } else if line == Line::First {
                    self.tell(message).await;
                }
            }
            (From::Server(line), None) => {
                if let Some(why) = refusal {
                    self.shared.say(&format!("{}: {why}", self.shared.stream.address.authority));
                }
                self.lost(line).await;
                return self.first.is_some() || self.second.is_some();
            }
        }
        true
    }

    /// The player asks.
    async fn ask(&mut self, mut request: Message, ip: IpAddr) {
        self.shared.count(|served| served.requests += 1);
        let Some(cseq) = request.cseq().map(str::to_owned) else {
            return self.tell(Message::answer(400, "Bad Request", "0")).await;
        };
        if self.here.is_none() {
            let after = request.uri().and_then(|uri| uri.strip_prefix("rtsp://"));
            self.here = after.and_then(|after| after.split(['/', '?']).next()).map(str::to_owned);
        }
        let mut setup = None;
        if request.method() == Some("SETUP") {
            let way = request.header("Transport").and_then(Transport::parse);
            let Some(way) = way.filter(|_| self.tracks.len() < TRACKS) else {
                return self.tell(Message::answer(461, "Unsupported Transport", &cseq)).await;
            };
            match self.track(&request, &way, ip) {
                Ok((ends, local, ours)) => {
                    request.set("Transport", &way.emit(ours, None));
                    setup = Some((ends, local, way));
                }
                Err(error) => {
                    self.shared.say(&format!("sockets for a track: {error}"));
                    return self.tell(Message::answer(500, "Internal Server Error", &cseq)).await;
                }
            }
        }
        self.order(&request);
        let request = self.outward(request);
        let both = is_repeatable(&request) && self.first.is_some() && self.second.is_some();
        let (first, second) = (self.first.is_some(), both || self.first.is_none());
        if both {
            self.shared.count(|served| served.doubled += 1);
        }
        if self.open.len() < REQUESTS {
            self.open.insert(cseq, Open { asked: Asked::over(first, second), since: Instant::now(), setup });
        }
        for (line, wanted) in [(Line::Second, second), (Line::First, first)] {
            if wanted {
                self.send(line, &request).await;
            }
        }
    }

    /// Sockets for a track that the player sets up: its ends, the ports that the player is told, and those for the server.
    fn track(
        &mut self,
        request: &Message,
        way: &Transport,
        ip: IpAddr,
    ) -> std::io::Result<(watch::Sender<Ends>, transport::Ports, transport::Ports)> {
        let uri = request.uri().unwrap_or_default();
        let is_video = self.video.as_ref().is_some_and(|video| {
            video.control.as_deref().is_none_or(|control| control == "*" || uri.ends_with(last(control)))
        });
        let is_h264 = is_video && self.video.as_ref().is_some_and(|video| video.is_h264);
        let (tell, ends) = watch::channel(Ends { server: None, player: (ip, way.client) });
        let mirrored = is_video && self.orders.is_none();
        let track = Track::open(Rc::clone(&self.shared), ends, mirrored, is_h264)?;
        let ports = (track.local.ports()?, track.first.ports()?);
        if let Some(pair) = &track.mirror {
            let (orders, ordered) = mpsc::unbounded_channel();
            let authorization = password(request, self.shared.server, self.shared.base);
            tokio::task::spawn_local(mirror::run(Rc::clone(&self.shared), Rc::clone(pair), authorization, ordered));
            self.orders = Some(orders);
        }
        tokio::task::spawn_local(track.run());
        Ok((tell, ports.0, ports.1))
    }

    /// The base layer does what the stream does.
    fn order(&self, request: &Message) {
        let order = match request.method() {
            Some("PLAY") => Order::Play(request.header("Range").map(str::to_owned)),
            Some("PAUSE") => Order::Pause,
            _ => return,
        };
        if let Some(orders) = &self.orders {
            // One that has failed has said so.
            let _ = orders.send(order);
        }
    }

    /// A server's answer.
    async fn answered(&mut self, line: Line, message: Message) {
        // One that has its answer already is not there any more.
        let Some(cseq) = message.cseq().map(str::to_owned) else { return };
        let Some(open) = self.open.get_mut(&cseq) else { return };
        let is_good = message.status().is_some_and(|status| status < 400);
        if let Some(answer) = open.asked.answered(line, is_good, message) {
            let open = self.open.remove(&cseq);
            if line == Line::Second && self.first.is_some() {
                self.shared.count(|served| served.answered_by_second += 1);
            }
            self.pass(answer, open.and_then(|open| open.setup)).await;
        }
    }

    /// An answer goes to the player.
    async fn pass(
        &mut self,
        mut answer: Message,
        setup: Option<(watch::Sender<Ends>, transport::Ports, Transport)>,
    ) {
        let is_good = answer.status().is_some_and(|status| status < 300);
        if let Some((ends, local, way)) = setup.filter(|_| is_good) {
            let Some(theirs) = answer.header("Transport").and_then(Transport::parse) else {
                let cseq = answer.cseq().unwrap_or("0").to_owned();
                return self.tell(Message::answer(461, "Unsupported Transport", &cseq)).await;
            };
            let ip = theirs.source.as_ref().and_then(|source| source.parse().ok());
            let server = theirs.server.map(|ports| (ip.unwrap_or(self.shared.server.ip()), ports));
            ends.send_modify(|ends| ends.server = server);
            self.tracks.push(ends);
            answer.set("Transport", &way.emit(way.client, Some(local)));
            let uri = self.shared.stream.address.uri();
            self.name = answer.session().map(|name| (name.to_owned(), uri));
        }
        if is_good && answer.header("Content-Type").is_some_and(|kind| kind.starts_with("application/sdp")) {
            self.video = video(&String::from_utf8_lossy(&answer.body));
        }
        self.tell(answer).await;
    }

    /// To the player, under our address.
    async fn tell(&mut self, mut message: Message) {
        if let Some(here) = self.here.clone() {
            let inward =
                |text: &str| self.there.iter().fold(text.to_owned(), |text, there| moved(&text, there, &here));
            message.start = inward(&message.start);
            message.headers.iter_mut().for_each(|(_, value)| *value = inward(value));
            if let Ok(body) = std::str::from_utf8(&message.body) {
                message.body = inward(body).into_bytes();
            }
        }
        // One that is gone is heard of in time.
        let _ = write(&mut self.player, &message).await;
    }

    /// To the server, under its address.
    fn outward(&self, mut message: Message) -> Message {
        if let Some(here) = &self.here {
            let there = &self.shared.stream.address.authority;
            message.start = moved(&message.start, here, there);
            for (name, value) in &mut message.headers {
                // A digest is over the address that the player knows.
                if !name.eq_ignore_ascii_case("Authorization") {
                    *value = moved(value, here, there);
                }
            }
        }
        message
    }

    async fn send(&mut self, line: Line, message: &Message) {
        let half = match line {
            Line::First => &mut self.first,
            Line::Second => &mut self.second,
        };
        let Some(half) = half else { return };
        if write(half, message).await.is_err() {
            self.lost(line).await;
        }
    }

    /// A connection to the server is gone.
    async fn lost(&mut self, line: Line) {
        match line {
            Line::First => self.first = None,
            Line::Second => self.second = None,
        }
        self.give_up(line, Duration::ZERO).await;
    }

    /// A refusal that has waited for the other answer for long enough is the answer.
    async fn expire(&mut self) {
        self.give_up(Line::First, PATIENCE).await;
        self.give_up(Line::Second, PATIENCE).await;
        // What nobody answers at all is the player's to repeat.
        self.open.retain(|_, open| open.since.elapsed() < FORGOTTEN);
    }

    async fn give_up(&mut self, line: Line, after: Duration) {
        let mut done = Vec::new();
        for (cseq, open) in &mut self.open {
            let is_refused = open.asked.is_refused() || after.is_zero();
            if is_refused && open.since.elapsed() >= after {
                done.extend(open.asked.gone(line).map(|answer| (cseq.clone(), answer)));
            }
        }
        for (cseq, answer) in done {
            let open = self.open.remove(&cseq);
            Box::pin(self.pass(answer, open.and_then(|open| open.setup))).await;
        }
    }

    /// The server need not keep a session whose player is gone.
    async fn sign_off(&mut self) {
        let Some((name, uri)) = self.name.take() else { return };
        let mut farewell = Message::request("TEARDOWN", &uri);
        farewell.set("CSeq", "999999");
        farewell.set("Session", &name);
        for line in [Line::Second, Line::First] {
            self.send(line, &farewell).await;
        }
    }
}

/// What the base layer's server may be told: a password is for the server that asked for it.
fn password(request: &Message, server: SocketAddr, base: Option<SocketAddr>) -> Option<String> {
    request.header("Authorization").filter(|_| base == Some(server)).map(str::to_owned)
}

/// The last part of a control: players write the rest in their own way.
fn last(control: &str) -> &str {
    control.rsplit('/').next().unwrap_or(control)
}

/// chosen: far above what players have open.
const REQUESTS: usize = 64;
/// Tracks of a session. chosen: video, sounds, texts of one.
const TRACKS: usize = 8;
const TURN: Duration = Duration::from_millis(250);
/// chosen: two round trips of a slow link.
const PATIENCE: Duration = Duration::from_secs(1);
/// chosen: players give up sooner.
const FORGOTTEN: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_goes_to_the_server_that_asked_for_it_and_to_no_other() {
        let mut request = Message::request("SETUP", "rtsp://192.0.2.1/film");
        let [server, port, host] =
            ["192.0.2.1:554", "192.0.2.1:8554", "192.0.2.2:554"].map(|text| text.parse().unwrap());
        assert_eq!(password(&request, server, Some(server)), None, "none was told");
        request.set("Authorization", "Basic bTpw");
        assert_eq!(password(&request, server, Some(server)).as_deref(), Some("Basic bTpw"));
        for other in [Some(port), Some(host), None] {
            assert_eq!(password(&request, server, other), None, "{other:?}");
        }
    }
}
