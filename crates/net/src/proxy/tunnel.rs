//! Connections that are passed through: for CONNECT, SOCKS5, and requests that are forwarded.
//!
//! In: a host and a port. Out: a TCP connection over the link that suits the host, and its bytes both ways.
//!
//! 1. The links are tried in the order of [`Choice`](super::choice::Choice), names resolved on each; a link that fails
//!    is learnt of, and so is what comes over it and how fast.
//! 2. How bytes go from one connection to the other is [`crate::pass`]'s.

use std::net::IpAddr;
use std::rc::Rc;

use marline_core::fetch::{Trouble, TroubleKind};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::session::Sessions;
use crate::pass::pass;
use crate::reach::Right;

/// A connection to a host, and the link that it is on.
pub(super) struct Tunnel {
    /// None when somebody has taken it.
    stream: Option<TcpStream>,
    sessions: Rc<Sessions>,
    /// None: this machine itself.
    link: Option<String>,
}

/// Opens a connection over the link that suits the host, if it may be reached with this right.
///
/// # Errors
/// The last link's trouble.
pub(super) async fn open(sessions: &Rc<Sessions>, host: &str, port: u16, right: Right) -> Result<Tunnel, Trouble> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let network = &sessions.network;
    if is_own(bare) {
        let (stream, _) = network.connect(bare, port, None, right).await?;
        return Ok(Tunnel { stream: Some(stream), sessions: Rc::clone(sessions), link: None });
    }
    let mut last = Trouble { kind: TroubleKind::Unreachable, text: format!("{host}: no link can be used now") };
    for interface in sessions.interfaces(bare) {
        match network.connect(bare, port, Some(&interface), right).await {
            Ok((stream, handshake)) => {
                sessions.choice.borrow_mut().connected(sessions.now(), &interface.name, bare, handshake);
                return Ok(Tunnel {
                    stream: Some(stream),
                    sessions: Rc::clone(sessions),
                    link: Some(interface.name),
                });
            }
            // Over no other link may it be reached either, unless a name means something else there.
            Err(trouble) if matches!(trouble.kind, TroubleKind::Forbidden | TroubleKind::Loop) => last = trouble,
            Err(trouble) => {
                // A host that refuses answers over this link, and a name that is unknown is nobody's fault.
                if !matches!(trouble.kind, TroubleKind::Refused | TroubleKind::Name) {
                    sessions.choice.borrow_mut().failed(sessions.now(), &interface.name);
                }
                last = trouble;
            }
        }
    }
    Err(last)
}

/// Whether a host is this machine, by whatever link; the kernel takes the unspecified address for the loopback.
fn is_own(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    let own = |ip: IpAddr| ip.to_canonical().is_loopback() || ip.to_canonical().is_unspecified();
    host == "localhost" || host.ends_with(".localhost") || host.parse().is_ok_and(own)
}

impl Tunnel {
    /// The connection, for somebody who speaks HTTP on it. What is left counts it as open.
    pub(super) fn take(&mut self) -> Option<TcpStream> {
        self.stream.take()
    }

    /// Passes bytes both ways until both ends are done; `first` came from the near end already.
    pub(super) async fn relay(mut self, near: TcpStream, first: &[u8]) {
        let Some(mut far) = self.stream.take() else { return };
        if far.write_all(first).await.is_err() {
            return;
        }
        let down = pass(&far, &near, |bytes, time| {
            if let Some(link) = &self.link {
                self.sessions.choice.borrow_mut().moved(link, bytes, time);
            }
        });
        let up = pass(&near, &far, |_, _| {});
        if let Err(error) = tokio::try_join!(down, up) {
            tracing::debug!(%error, "a tunnel broke");
        }
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        if let Some(link) = &self.link {
            self.sessions.choice.borrow_mut().ended(link);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_known_by_all_its_names() {
        for host in
            ["localhost", "LocalHost", "a.localhost", "127.8.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::"]
        {
            assert!(is_own(host), "{host}");
        }
        for host in ["example.org", "localhost.example", "192.0.2.1", "2001:db8::1", ""] {
            assert!(!is_own(host), "{host}");
        }
    }
}
