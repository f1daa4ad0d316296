//! An ordinary HTTP proxy: requests in absolute form (RFC 9112 §3.2.2) are passed on, CONNECT opens a tunnel
//! (RFC 9110 §9.3.6).
//!
//! In: a request, the links. Out: the server's answer as it is, or one line that says why there is none.
//!
//! 1. Each request has a connection of its own over the link that suits the host. Pages of today come through CONNECT;
//!    what is left is too little to keep connections for.
//! 2. What concerns one connection only goes no further (RFC 9110 §7.6.1).
//! 3. The proxy adds nothing of its own: no Via and no X-Forwarded-For, which would tell who is behind it.

use std::rc::Rc;

use http::header::{CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::{Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use marline_core::fetch::{Trouble, TroubleKind};
use tokio::net::TcpStream;

use super::body::Reply;
use super::media::plain;
use super::session::Sessions;
use super::tunnel;
use crate::reach::Right;

/// Passes a request on.
pub(super) async fn request(
    sessions: &Rc<Sessions>,
    mut request: Request<Incoming>,
    right: Right,
) -> Response<Reply> {
    let uri = request.uri().clone();
    let Some(host) = uri.host().filter(|_| uri.scheme_str() == Some("http")) else {
        return plain(StatusCode::BAD_REQUEST, "only http:// can be asked for here; https goes through CONNECT");
    };
    let port = uri.port_u16().unwrap_or(80);
    let opened = tunnel::open(sessions, host, port, right).await;
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
    let Some(far) = tunnel.take() else {
        return plain(StatusCode::BAD_GATEWAY, "the connection is gone");
    };
    let (mut sender, connection) = match hyper::client::conn::http1::handshake(TokioIo::new(far)).await {
        Ok(both) => both,
        Err(error) => {
            return plain(StatusCode::BAD_GATEWAY, &format!("{}: {error}", uri.host().unwrap_or_default()));
        }
    };
    tokio::task::spawn_local(async move {
        // Held to count the connection as open.
        let _tunnel = tunnel;
        let _ = connection.await;
    });
    match sender.send_request(request).await {
        Ok(mut answer) => {
            strip(answer.headers_mut());
            answer.map(Reply::Forward)
        }
        Err(error) => plain(StatusCode::BAD_GATEWAY, &format!("{}: {error}", uri.host().unwrap_or_default())),
    }
}

/// Opens a tunnel.
pub(super) async fn connect(sessions: &Rc<Sessions>, request: Request<Incoming>, right: Right) -> Response<Reply> {
    let uri = request.uri();
    let (Some(host), Some(port)) = (uri.host(), uri.port_u16()) else {
        return plain(StatusCode::BAD_REQUEST, "write CONNECT host:port");
    };
    let tunnel = match tunnel::open(sessions, host, port, right).await {
        Ok(tunnel) => tunnel,
        Err(trouble) => return refused(&trouble),
    };
    tokio::task::spawn_local(async move {
        let Ok(upgraded) = hyper::upgrade::on(request).await else { return };
        let Ok(parts) = upgraded.downcast::<TokioIo<TcpStream>>() else { return };
        // The buffer has what the client sent behind its request.
        tunnel.relay(parts.io.into_inner(), &parts.read_buf).await;
    });
    Response::new(Reply::Text(http_body_util::Full::default()))
}

/// Why there is no connection, for the client.
fn refused(trouble: &Trouble) -> Response<Reply> {
    let status = match trouble.kind {
        TroubleKind::Forbidden => StatusCode::FORBIDDEN,
        TroubleKind::Loop => StatusCode::LOOP_DETECTED,
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
