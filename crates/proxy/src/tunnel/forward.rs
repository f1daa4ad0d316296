//! An ordinary HTTP proxy: forwards requests in absolute form (RFC 9112 §3.2.2) and opens tunnels for CONNECT (RFC 9110
//! §9.3.6).
//!
//! The client receives the server's response unchanged, or one line of text with the reason of a failure.
//!
//! 1. Each request uses a connection of its own over the link that suits the host. Most pages are fetched through
//!    CONNECT, so too few requests remain to justify a connection pool.
//! 2. Hop-by-hop fields are removed (RFC 9110 §7.6.1).
//! 3. A request for another protocol (WebSocket over `http://`) becomes a tunnel when the server agrees (101).
//! 4. The proxy adds neither Via nor X-Forwarded-For, which would reveal the clients behind it.

use std::rc::Rc;

use http::header::{
    CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use marline_core::fetch::{ConnError, ConnErrorKind};
use marline_download::CountingStream;
use marline_net::egress::EgressPolicy;
use marline_net::http::MAX_FIELDS;
use tokio::io::AsyncWriteExt as _;

use super::{Tunnel, Tunnels};
use crate::client::admission::ConnPermit;
use crate::client::stream::ClientStream;
use crate::response::body::ProxyBody;
use crate::response::own::text_response;

pub(crate) async fn forward_request(
    tunnels: &Tunnels,
    mut request: Request<Incoming>,
    egress: EgressPolicy,
    permit: Rc<ConnPermit>,
) -> Response<ProxyBody> {
    let uri = request.uri().clone();
    let scheme = uri.scheme_str().unwrap_or_default().to_ascii_lowercase();
    let Some(host) = uri.host().filter(|_| matches!(scheme.as_str(), "http" | "ws")) else {
        return text_response(
            StatusCode::BAD_REQUEST,
            "this proxy forwards only http:// URLs; use CONNECT for https",
        );
    };
    let port = uri.port_u16().unwrap_or(80);
    let upgrade = requested_upgrade(request.headers());
    let kind = if upgrade.is_some() { "upgrade" } else { "http" };
    let opened = tunnels.open(kind, (host, port), egress).await;
    let mut tunnel = match opened {
        Ok(tunnel) => tunnel,
        Err(error) => return error_response(&error),
    };
    let authority = uri
        .authority()
        .map_or(host, |authority| authority.as_str().rsplit_once('@').map_or(authority.as_str(), |(_, host)| host));
    let (Ok(authority), Ok(path)) = (HeaderValue::from_str(authority), origin_form(&uri).parse::<Uri>()) else {
        return text_response(StatusCode::BAD_REQUEST, "the URL is not valid");
    };
    *request.uri_mut() = path;
    strip_hop_by_hop(request.headers_mut());
    request.headers_mut().insert(HOST, authority);
    if let Some(protocol) = &upgrade {
        set_upgrade(request.headers_mut(), protocol);
    }
    let client_upgrade = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
    let Some(server_stream) = tunnel.take_stream() else {
        return text_response(StatusCode::BAD_GATEWAY, "the connection to the server was closed");
    };
    let bad_gateway = |error: hyper::Error| {
        text_response(StatusCode::BAD_GATEWAY, &format!("{}: {error}", uri.host().unwrap_or_default()))
    };
    let mut http = hyper::client::conn::http1::Builder::new();
    // The same limit as for media requests. hyper's default is 100 fields.
    http.max_headers(MAX_FIELDS);
    let (mut sender, connection) = match http.handshake(TokioIo::new(server_stream)).await {
        Ok(both) => both,
        Err(error) => return bad_gateway(error),
    };
    let connection = tokio::task::spawn_local(async move { drop(connection.with_upgrades().await) });
    let mut response = match sender.send_request(request).await {
        Ok(response) => response,
        Err(error) => return bad_gateway(error),
    };
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        tokio::task::spawn_local(async move {
            // `report_rate` never returns; it keeps the tunnel alive, so that the connection counts as open.
            tokio::select! {
                _ = connection => {}
                () = tunnel.report_rate() => {}
            }
        });
        strip_hop_by_hop(response.headers_mut());
        return response.map(ProxyBody::Forwarded);
    }
    let (Some(client_upgrade), Some(protocol)) = (client_upgrade, response.headers().get(UPGRADE).cloned()) else {
        return text_response(StatusCode::BAD_GATEWAY, "the server switched to a protocol that was not requested");
    };
    let server_upgrade = hyper::upgrade::on(&mut response);
    tokio::task::spawn_local(async move {
        tokio::select! {
            () = forward_upgraded(&tunnel, client_upgrade, server_upgrade) => {}
            () = permit.wait_for_eviction() => {}
        }
    });
    strip_hop_by_hop(response.headers_mut());
    set_upgrade(response.headers_mut(), &protocol);
    response.map(|_| ProxyBody::Text(http_body_util::Full::default()))
}

/// Relays a connection that has switched to another protocol (RFC 9110 §7.8), like a tunnel.
async fn forward_upgraded(tunnel: &Tunnel, client: OnUpgrade, server: OnUpgrade) {
    let (Ok(client), Ok(server)) = tokio::join!(client, server) else { return };
    let (Ok(client_parts), Ok(server_parts)) =
        (client.downcast::<TokioIo<ClientStream>>(), server.downcast::<TokioIo<CountingStream>>())
    else {
        return;
    };
    let (mut to_client, mut to_server) =
        (client_parts.io.into_inner().into_inner(), server_parts.io.into_inner().into_inner());
    // Bytes that arrived together with the heads.
    let buffered =
        tokio::try_join!(to_client.write_all(&server_parts.read_buf), to_server.write_all(&client_parts.read_buf));
    if buffered.is_ok() {
        tunnel.forward_both_ways(&to_client, &to_server).await;
    }
}

/// The protocol to which a client wants to switch. An upgrade to HTTP/2 is ignored, because it concerns only the client
/// and the proxy.
fn requested_upgrade(fields: &HeaderMap) -> Option<HeaderValue> {
    let has_upgrade_option = |value: &HeaderValue| {
        let list = value.to_str().unwrap_or_default();
        list.split(',').any(|option| option.trim().eq_ignore_ascii_case("upgrade"))
    };
    let protocol = fields.get(UPGRADE).filter(|_| fields.get_all(CONNECTION).iter().any(has_upgrade_option))?;
    let is_h2c = protocol.to_str().is_ok_and(|name| name.to_ascii_lowercase().contains("h2c"));
    (!is_h2c).then(|| protocol.clone())
}

/// Restores the fields that [`strip_hop_by_hop`] has removed.
fn set_upgrade(fields: &mut HeaderMap, protocol: &HeaderValue) {
    fields.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    fields.insert(UPGRADE, protocol.clone());
}

/// Opens a tunnel for a CONNECT request.
pub(crate) async fn open_tunnel(
    tunnels: &Tunnels,
    request: Request<Incoming>,
    egress: EgressPolicy,
    permit: Rc<ConnPermit>,
) -> Response<ProxyBody> {
    let fields = request.headers();
    if fields.contains_key(CONTENT_LENGTH) || fields.contains_key(TRANSFER_ENCODING) {
        // RFC 9110 §9.3.6: bytes after a CONNECT head belong to the tunnel.
        let mut response = text_response(StatusCode::BAD_REQUEST, "a CONNECT request must not have a body");
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        return response;
    }
    let uri = request.uri();
    let Some((host, port)) = authority_form(uri) else {
        let mut response =
            text_response(StatusCode::BAD_REQUEST, "write CONNECT host:port, without a scheme, a login or a path");
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        return response;
    };
    let tunnel = match tunnels.open("connect", (host, port), egress).await {
        Ok(tunnel) => tunnel,
        Err(error) => return error_response(&error),
    };
    tokio::task::spawn_local(async move {
        let Ok(upgraded) = hyper::upgrade::on(request).await else { return };
        let Ok(parts) = upgraded.downcast::<TokioIo<ClientStream>>() else { return };
        // The buffer holds the bytes that the client sent after its request.
        tokio::select! {
            () = tunnel.relay(parts.io.into_inner().into_inner(), &parts.read_buf) => {}
            () = permit.wait_for_eviction() => {}
        }
    });
    Response::new(ProxyBody::Text(http_body_util::Full::default()))
}

/// The host and port of a CONNECT; `None` if the target has other parts or no port (RFC 9112 §3.2.3, RFC 9110 §9.3.6).
fn authority_form(uri: &Uri) -> Option<(&str, u16)> {
    let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'))?;
    let is_bare = uri.scheme().is_none() && uri.path_and_query().is_none_or(|path| path.as_str().is_empty());
    let port = authority.port_u16().filter(|port| *port > 0)?;
    (is_bare && !authority.host().is_empty()).then_some((authority.host(), port))
}

/// The response for a connection that could not be opened.
fn error_response(error: &ConnError) -> Response<ProxyBody> {
    let status = match error.kind {
        ConnErrorKind::Forbidden => StatusCode::FORBIDDEN,
        ConnErrorKind::OwnListener => StatusCode::LOOP_DETECTED,
        _ => StatusCode::BAD_GATEWAY,
    };
    text_response(status, &error.text)
}

/// The request target for a server; an empty path becomes `/` (RFC 9112 §3.2.1).
fn origin_form(uri: &Uri) -> String {
    let target = uri.path_and_query().map_or("", |path| path.as_str());
    if target.starts_with('/') { target.to_owned() } else { format!("/{target}") }
}

/// Removes the fields that concern one connection only.
fn strip_hop_by_hop(fields: &mut HeaderMap) {
    let listed: Vec<HeaderName> = fields
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let always = [CONNECTION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE];
    let unlisted_hop_by_hop = ["keep-alive", "proxy-connection", "proxy-authorization", "proxy-authenticate"];
    for name in listed.iter().chain(&always) {
        fields.remove(name);
    }
    for name in unlisted_hop_by_hop {
        fields.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_a_path_requests_the_root() {
        for (url, target) in
            [("http://a.example", "/"), ("http://a.example?x=1", "/?x=1"), ("http://a.example/b?x=1", "/b?x=1")]
        {
            assert_eq!(origin_form(&url.parse().unwrap()), target, "{url}");
        }
    }

    #[test]
    fn connect_takes_a_host_and_a_port_only() {
        for (target, expected) in [
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
            assert_eq!(uri.as_ref().ok().and_then(authority_form), expected, "{target}");
        }
    }

    #[test]
    fn hop_by_hop_fields_are_removed() {
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
        strip_hop_by_hop(&mut fields);
        assert_eq!(fields.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
    }
}
