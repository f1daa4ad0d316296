//! Connections that are passed through: for CONNECT, SOCKS5, and requests that are forwarded.
//!
//! In: a host and a port. Out: a TCP connection over the link that suits the host, and its bytes both ways.
//!
//! 1. The links are tried in the order of [`Choice`](super::choice::Choice), names resolved on each; a link that fails
//!    is learnt of, and so is what comes over it and how fast.
//! 2. How bytes go from one connection to the other is [`marline_net::pass`]'s.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use marline_core::fetch::{ConnError, ConnErrorKind};
use marline_core::units::DataSize;
use marline_download::{Counted, Flow};
use marline_net::pass::{self, Way};
use marline_net::reach::Right;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::choice::Pair;
use super::session::Sessions;

/// A connection to a host, and the link that it is on.
pub(super) struct Tunnel {
    /// None when somebody has taken it.
    stream: Option<TcpStream>,
    sessions: Rc<Sessions>,
    pub(super) flow: Rc<Flow>,
    /// What the choice of links knows it by; none: it is over none.
    choice: Option<Chosen>,
    /// What has come since the rate was told.
    window: Cell<(Instant, u64)>,
}

/// Opens a connection over the link that suits the host, if it may be reached with this right. `kind` is what it is for.
///
/// # Errors
/// The last link's trouble.
pub(super) async fn open(
    sessions: &Rc<Sessions>,
    kind: &'static str,
    (host, port): (&str, u16),
    right: Right,
) -> Result<Tunnel, ConnError> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let network = &sessions.network;
    let tunnel = |stream, choice: Option<Chosen>| {
        keep_alive(&stream);
        let link = choice.as_ref().map(|choice| choice.link.as_str());
        Tunnel {
            stream: Some(stream),
            sessions: Rc::clone(sessions),
            flow: network.traffic.flow(kind, (bare, port), right.host(), link),
            choice,
            window: Cell::new((Instant::now(), 0)),
        }
    };
    if network.needs_no_link(bare) {
        let (stream, _) = network.connect(bare, port, None, right).await?;
        return Ok(tunnel(stream, None));
    }
    let mut last = ConnError { kind: ConnErrorKind::Unreachable, text: format!("{host}: no link can be used now") };
    let mut forbidden = None;
    let pair = (right.host(), bare.to_ascii_lowercase());
    for interface in sessions.interfaces(&pair) {
        let chosen = Chosen::new(sessions, &interface.name, &pair);
        match network.connect(bare, port, Some(&interface), right).await {
            Ok((stream, handshake)) => {
                sessions.choice.borrow_mut().connected(sessions.now(), &interface.name, &pair, handshake);
                return Ok(tunnel(stream, Some(chosen)));
            }
            // Over no other link may it be reached either, unless a name means something else there.
            Err(trouble) if trouble.is_refusal() => forbidden = Some(trouble),
            Err(trouble) => {
                // A host that refuses answers over this link, and a name that is unknown is nobody's fault.
                if !matches!(trouble.kind, ConnErrorKind::Refused | ConnErrorKind::Dns) {
                    sessions.choice.borrow_mut().failed(sessions.now(), &interface.name);
                }
                last = trouble;
            }
        }
    }
    // A link that has no address of the name says less than one whose address is refused.
    Err(forbidden.unwrap_or(last))
}

/// A server that has gone without a word is found.
fn keep_alive(stream: &TcpStream) {
    let keep_alive = TcpKeepalive::new().with_time(KEEP_ALIVE).with_interval(KEEP_ALIVE_AGAIN);
    // What cannot be set changes how soon that is, nothing else.
    let _ = SockRef::from(stream).set_tcp_keepalive(&keep_alive);
}

impl Tunnel {
    /// The connection, for somebody who speaks HTTP on it. What is left counts it as open.
    pub(super) fn take(&mut self) -> Option<Counted> {
        self.stream.take().map(|stream| Counted::new(stream, Arc::clone(&self.flow.count)))
    }

    /// Passes bytes both ways until both ends are done, or silent for [`IDLE`]; `first` came from the near end already.
    pub(super) async fn relay(mut self, near: TcpStream, first: &[u8]) {
        let Some(mut far) = self.stream.take() else { return };
        if far.write_all(first).await.is_err() {
            return;
        }
        self.flow.count.up.fetch_add(first.len() as u64, Ordering::Relaxed);
        self.pass(&near, &far).await;
    }

    /// Passes bytes on between two connections, the far one of which was [taken](Self::take).
    pub(super) async fn pass(&self, near: &TcpStream, far: &TcpStream) {
        let moved = |way, size: DataSize| match way {
            Way::Up => drop(self.flow.count.up.fetch_add(size.bytes(), Ordering::Relaxed)),
            Way::Down => {
                self.flow.count.down.fetch_add(size.bytes(), Ordering::Relaxed);
                self.came(size);
            }
        };
        if let Err(error) = pass::relay(near, far, self.sessions.terms.idle, moved).await {
            tracing::debug!(host = self.flow.host, %error, "a tunnel broke");
        }
    }

    /// Tells the link's rate of what somebody else reads from a connection that was [taken](Self::take), for ever.
    pub(super) async fn watch(&self) {
        let mut told = 0;
        loop {
            tokio::time::sleep(TELL_EVERY).await;
            let down = self.flow.count.down.load(Ordering::Relaxed);
            let more = down - std::mem::replace(&mut told, down);
            if more > 0 {
                self.came(DataSize::from_bytes(more));
            }
        }
    }

    /// So much has come: the link's rate is told about twice a second.
    fn came(&self, size: DataSize) {
        let (since, bytes) = self.window.get();
        let (bytes, time) = (bytes + size.bytes(), since.elapsed());
        if time < TELL_EVERY {
            return self.window.set((since, bytes));
        }
        self.window.set((Instant::now(), 0));
        if let Some(Chosen { link, pair, id, .. }) = &self.choice {
            let mut choice = self.sessions.choice.borrow_mut();
            choice.is_busy(self.sessions.now(), pair, *id);
            choice.moved(link, DataSize::from_bytes(bytes), time);
        }
    }
}

/// A connection that the choice of links counts as open until this is dropped.
struct Chosen {
    sessions: Rc<Sessions>,
    link: String,
    pair: Pair,
    id: u64,
}

impl Chosen {
    fn new(sessions: &Rc<Sessions>, link: &str, pair: &Pair) -> Self {
        let id = sessions.choice.borrow_mut().opens(sessions.now(), link, pair);
        Self { sessions: Rc::clone(sessions), link: link.to_owned(), pair: pair.clone(), id }
    }
}

impl Drop for Chosen {
    fn drop(&mut self) {
        self.sessions.choice.borrow_mut().ended(&self.link, &self.pair, self.id);
    }
}

/// RFC 5382 §5: a NAT keeps an idle connection for at least so long, so programs expect it.
pub(super) const IDLE: Duration = Duration::from_secs(124 * 60);
const KEEP_ALIVE: Duration = Duration::from_secs(120);
const KEEP_ALIVE_AGAIN: Duration = Duration::from_secs(30);
const TELL_EVERY: Duration = Duration::from_millis(500);
