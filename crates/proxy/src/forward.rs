//! An ordinary HTTP proxy: requests in absolute form (RFC 9112 §3.2.2) are passed on, CONNECT opens a tunnel
//! (RFC 9110 §9.3.6).
//!
//! In: a request, the links. Out: the server's answer as it is, or one line that says why there is none.
//!
//! 1. Each request has a connection of its own over the link that suits the host. Pages of today come through CONNECT;
//!    what is left is too little to keep connections for.
//! 2. What concerns one connection only goes no further (RFC 9110 §7.6.1).
//! 3. A request that asks for another protocol (WebSocket over `http://`) becomes a tunnel when the server agrees (101).
//! 4. The proxy adds nothing of its own: no Via and no X-Forwarded-For, which would tell who is behind it.

use std::rc::Rc;

use http::header::{
    CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use marline_core::fetch::{ConnError, ConnErrorKind};
use marline_download::Counted;
use marline_net::http::FIELDS_MOST;
use marline_net::reach::Right;
use tokio::io::AsyncWriteExt as _;

use super::body::Reply;
use super::client_stream::ClientStream;
use super::clients::Seat;
use super::media::plain;
use super::session::Sessions;
use super::tunnel::{self, Tunnel};

/// Passes a request on.
pub(super) async fn request(
    sessions: &Rc<Sessions>,
    mut request: Request<Incoming>,
    right: Right,
    seat: Rc<Seat>,
) -> Response<Reply> {
    let uri = request.uri().clone();
    let scheme = uri.scheme_str().unwrap_or_default().to_ascii_lowercase();
    let Some(host) = uri.host().filter(|_| matches!(scheme.as_str(), "http" | "ws")) else {
        return plain(StatusCode::BAD_REQUEST, "only http:// can be asked for here; https goes through CONNECT");
    };
    let port = uri.port_u16().unwrap_or(80);
    let upgrade = upgrade_of(request.headers());
    let kind = if upgrade.is_some() { "upgrade" } else { "http" };
    let opened = tunnel::open(sessions, kind, (host, port), right).await;
    let mut tunnel = match opened {
        Ok(tunnel) => tunnel,
        Err(trouble) => return refused(&trouble),
    };
    let authority = uri
        .authority()
        .map_or(host, |authority| authority.as_str().rsplit_once('@').map_or(authority.as_str(), |(_, host)| host));
    let (Ok(authority), Ok(path)) = (HeaderValue::from_str(authority), origin_form(&uri).parse::<Uri>()) else {
        return plain(StatusCode::BAD_REQUEST, "the URL is none");
    };
    *request.uri_mut() = path;
    strip(request.headers_mut());
    request.headers_mut().insert(HOST, authority);
    if let Some(protocol) = &upgrade {
        ask_to_upgrade(request.headers_mut(), protocol);
    }
    let near = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
    let Some(far) = tunnel.take() else {
        return plain(StatusCode::BAD_GATEWAY, "the connection is gone");
    };
    let failed = |error: hyper::Error| {
        plain(StatusCode::BAD_GATEWAY, &format!("{}: {error}", uri.host().unwrap_or_default()))
    };
    let mut http = hyper::client::conn::http1::Builder::new();
    // As many fields as for what is played; 100 otherwise.
    http.max_headers(FIELDS_MOST);
    let (mut sender, connection) = match http.handshake(TokioIo::new(far)).await {
        Ok(both) => both,
        Err(error) => return failed(error),
    };
    let connection = tokio::task::spawn_local(async move { drop(connection.with_upgrades().await) });
    let mut answer = match sender.send_request(request).await {
        Ok(answer) => answer,
        Err(error) => return failed(error),
    };
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        tokio::task::spawn_local(async move {
            // Held to count the connection as open.
            tokio::select! {
                _ = connection => {}
                () = tunnel.watch() => {}
            }
        });
        strip(answer.headers_mut());
        return answer.map(Reply::Forward);
    }
    let (Some(near), Some(protocol)) = (near, answer.headers().get(UPGRADE).cloned()) else {
        return plain(StatusCode::BAD_GATEWAY, "the server changes to a protocol that nobody has asked for");
    };
    let far = hyper::upgrade::on(&mut answer);
    tokio::task::spawn_local(async move {
        tokio::select! {
            () = switched(&tunnel, near, far) => {}
            () = seat.evicted() => {}
        }
    });
    strip(answer.headers_mut());
    ask_to_upgrade(answer.headers_mut(), &protocol);
    answer.map(|_| Reply::Text(http_body_util::Full::default()))
}

/// Carries a connection whose ends speak another protocol than HTTP from now on (RFC 9110 §7.8), as a tunnel.
async fn switched(tunnel: &Tunnel, near: OnUpgrade, far: OnUpgrade) {
    let (Ok(near), Ok(far)) = tokio::join!(near, far) else { return };
    let (Ok(near), Ok(far)) = (near.downcast::<TokioIo<ClientStream>>(), far.downcast::<TokioIo<Counted>>()) else {
        return;
    };
    let (mut to_client, mut to_server) = (near.io.into_inner().into_inner(), far.io.into_inner().into_inner());
    // What came with the heads already.
    let early = tokio::try_join!(to_client.write_all(&far.read_buf), to_server.write_all(&near.read_buf));
    if early.is_ok() {
        tunnel.pass(&to_client, &to_server).await;
    }
}

/// The protocol that a client wants to change to; HTTP/2 is between the client and the proxy alone.
fn upgrade_of(fields: &HeaderMap) -> Option<HeaderValue> {
    let asks = |value: &HeaderValue| {
        let list = value.to_str().unwrap_or_default();
        list.split(',').any(|word| word.trim().eq_ignore_ascii_case("upgrade"))
    };
    let protocol = fields.get(UPGRADE).filter(|_| fields.get_all(CONNECTION).iter().any(asks))?;
    let is_h2c = protocol.to_str().is_ok_and(|name| name.to_ascii_lowercase().contains("h2c"));
    (!is_h2c).then(|| protocol.clone())
}

/// Puts back what [`strip`] has taken away.
fn ask_to_upgrade(fields: &mut HeaderMap, protocol: &HeaderValue) {
    fields.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    fields.insert(UPGRADE, protocol.clone());
}

/// Opens a tunnel.
pub(super) async fn connect(
    sessions: &Rc<Sessions>,
    request: Request<Incoming>,
    right: Right,
    seat: Rc<Seat>,
) -> Response<Reply> {
    let fields = request.headers();
    if fields.contains_key(CONTENT_LENGTH) || fields.contains_key(TRANSFER_ENCODING) {
        // RFC 9110 §9.3.6: what follows a CONNECT is for the server.
        let mut answer = plain(StatusCode::BAD_REQUEST, "CONNECT has no body");
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        return answer;
    }
    let uri = request.uri();
    let Some((host, port)) = authority_form(uri) else {
        let mut answer =
            plain(StatusCode::BAD_REQUEST, "write CONNECT host:port, without a scheme, a login or a path");
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        return answer;
    };
    let tunnel = match tunnel::open(sessions, "connect", (host, port), right).await {
        Ok(tunnel) => tunnel,
        Err(trouble) => return refused(&trouble),
    };
    tokio::task::spawn_local(async move {
        let Ok(upgraded) = hyper::upgrade::on(request).await else { return };
        let Ok(parts) = upgraded.downcast::<TokioIo<ClientStream>>() else { return };
        // The buffer has what the client sent behind its request.
        tokio::select! {
            () = tunnel.relay(parts.io.into_inner().into_inner(), &parts.read_buf) => {}
            () = seat.evicted() => {}
        }
    });
    Response::new(Reply::Text(http_body_util::Full::default()))
}

/// The host and port of a CONNECT; none: there is something else as well, or no port (RFC 9112 §3.2.3, RFC 9110 §9.3.6).
fn authority_form(uri: &Uri) -> Option<(&str, u16)> {
    let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'))?;
    let is_bare = uri.scheme().is_none() && uri.path_and_query().is_none_or(|path| path.as_str().is_empty());
    let port = authority.port_u16().filter(|port| *port > 0)?;
    (is_bare && !authority.host().is_empty()).then_some((authority.host(), port))
}

/// Why there is no connection, for the client.
fn refused(trouble: &ConnError) -> Response<Reply> {
    let status = match trouble.kind {
        ConnErrorKind::Forbidden => StatusCode::FORBIDDEN,
        ConnErrorKind::OwnListener => StatusCode::LOOP_DETECTED,
        _ => StatusCode::BAD_GATEWAY,
    };
    plain(status, &trouble.text)
}

/// What a server is asked for; an empty path is `/` (RFC 9112 §3.2.1).
fn origin_form(uri: &Uri) -> String {
    let asked = uri.path_and_query().map_or("", |path| path.as_str());
    if asked.starts_with('/') { asked.to_owned() } else { format!("/{asked}") }
}

/// Removes what concerns one connection only.
fn strip(fields: &mut HeaderMap) {
    let named: Vec<HeaderName> = fields
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let always = [CONNECTION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE];
    let by_habit = ["keep-alive", "proxy-connection", "proxy-authorization", "proxy-authenticate"];
    for name in named.iter().chain(&always) {
        fields.remove(name);
    }
    for name in by_habit {
        fields.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_a_path_asks_for_the_root() {
        for (url, asked) in
            [("http://a.example", "/"), ("http://a.example?x=1", "/?x=1"), ("http://a.example/b?x=1", "/b?x=1")]
        {
            assert_eq!(origin_form(&url.parse().unwrap()), asked, "{url}");
        }
    }

    #[test]
    fn a_tunnel_is_asked_for_with_a_host_and_a_port_alone() {
        for (target, is) in [
            ("a.example:443", Some(("a.example", 443))),
            ("[::1]:80", Some(("[::1]", 80))),
            ("a.example", None),
            ("a.example:0", None),
            ("me:pw@a.example:80", None),
            ("@a.example:80", None),
            ("http://a.example:80", None),
            ("http://a.example:80/", None),
            ("/a.example:80", None),
            (":80", None),
        ] {
            let uri = target.parse::<Uri>();
            assert_eq!(uri.as_ref().ok().and_then(authority_form), is, "{target}");
        }
    }

    #[test]
    fn what_concerns_one_connection_goes_no_further() {
        let mut fields: HeaderMap = [
            ("connection", "close, X-Mine"),
            ("x-mine", "1"),
            ("proxy-authorization", "secret"),
            ("proxy-connection", "keep-alive"),
            ("accept", "*/*"),
        ]
        .into_iter()
        .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), HeaderValue::from_static(value)))
        .collect();
        strip(&mut fields);
        assert_eq!(fields.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
    }
}
