//! SOCKS5 clients of the proxy: opens a tunnel over one link for each.
//!
//! [`marline_net::socks5`], which `marline edge` uses as well, reads requests and builds replies.

use std::time::Duration;

use marline_core::fetch::ConnErrorKind;
use marline_net::egress::EgressPolicy;
use marline_net::socks5::{GENERAL_FAILURE, HOST_UNREACHABLE, NOT_ALLOWED, SUCCEEDED, read_request, reply};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::Tunnels;
use crate::client::admission::ConnPermit;

/// Serves one connection, whose first byte was recognized as SOCKS5.
pub(crate) async fn serve(tunnels: &Tunnels, mut client: TcpStream, egress: EgressPolicy, permit: &ConnPermit) {
    let Ok(Ok(request)) = tokio::time::timeout(REQUEST_TIMEOUT, read_request(&mut client)).await else { return };
    permit.on_request();
    let (code, tunnel) = match request {
        Err(code) => (code, None),
        Ok((host, port)) => match tunnels.open("socks5", (&host, port), egress).await {
            Ok(tunnel) => (SUCCEEDED, Some(tunnel)),
            Err(error) => {
                tracing::debug!(host, port, why = %error.text, "SOCKS5 request failed");
                (reply_code(error.kind), None)
            }
        },
    };
    let written = client.write_all(&reply(code)).await;
    if let (Ok(()), Some(tunnel)) = (written, tunnel) {
        tunnel.relay(client, &[]).await;
    }
}

/// Reply codes of RFC 1928 §6.
fn reply_code(kind: ConnErrorKind) -> u8 {
    match kind {
        ConnErrorKind::Forbidden | ConnErrorKind::OwnListener => NOT_ALLOWED,
        ConnErrorKind::Refused => 5,
        ConnErrorKind::Unreachable => 3,
        ConnErrorKind::Dns | ConnErrorKind::TimedOut => HOST_UNREACHABLE,
        _ => GENERAL_FAILURE,
    }
}

/// How long a client may take to send its SOCKS5 request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
