//! Connections of the media port: distinguishes SOCKS5 from HTTP, and routes requests.
//!
//! The first byte of a connection distinguishes the protocols. A CONNECT request opens a tunnel, a request with an absolute
//! URL is forwarded, and all others are requests for media.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::{Method, Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use marline_net::egress::EgressPolicy;
use tokio::net::TcpStream;

use crate::client::admission::ConnPermit;
use crate::client::origin_check;
use crate::client::stream::ClientStream;
use crate::listener::http1_builder;
use crate::media::handler::MediaHandler;
use crate::response::body::ProxyBody;
use crate::tunnel::{Tunnels, forward, socks5};

/// What serves the requests of the media port.
pub(crate) struct MediaPort {
    pub(crate) media: MediaHandler,
    pub(crate) tunnels: Tunnels,
}

/// Serves one connection of the media port until it ends or is evicted.
pub(crate) async fn serve_until_evicted(
    port: Rc<MediaPort>,
    stream: TcpStream,
    (peer, listener): (SocketAddr, SocketAddr),
    permit: Rc<ConnPermit>,
    timeout: Duration,
) {
    let task_permit = Rc::clone(&permit);
    tokio::select! {
        () = serve_client(port, stream, (peer, listener), task_permit, timeout) => {}
        () = permit.wait_for_eviction() => tracing::debug!(%peer, "connection closed to admit another client"),
    }
}

async fn serve_client(
    port: Rc<MediaPort>,
    stream: TcpStream,
    (peer, listener): (SocketAddr, SocketAddr),
    permit: Rc<ConnPermit>,
    timeout: Duration,
) {
    let mut first_byte = [0; 1];
    match tokio::time::timeout(timeout, stream.peek(&mut first_byte)).await {
        Ok(Ok(1)) if first_byte == [5] => {
            let egress = EgressPolicy::for_peer(peer).with_listener(listener);
            return socks5::serve(&port.tunnels, stream, egress, &permit).await;
        }
        Ok(Ok(1)) => {}
        _ => return,
    }
    let (stream, is_served) = ClientStream::new(stream);
    let service = service_fn(|request: Request<Incoming>| {
        is_served.store(true, Ordering::Relaxed);
        let (port, request_permit) = (Rc::clone(&port), Rc::clone(&permit));
        async move {
            request_permit.on_request();
            Ok::<_, Infallible>(route(&port, request, (listener, peer), request_permit).await)
        }
    });
    if let Err(error) = http1_builder(timeout).serve_connection(TokioIo::new(stream), service).with_upgrades().await
    {
        tracing::debug!(%peer, %error, "client connection failed");
    }
}

async fn route(
    port: &MediaPort,
    request: Request<Incoming>,
    (listener, peer): (SocketAddr, SocketAddr),
    permit: Rc<ConnPermit>,
) -> Response<ProxyBody> {
    let egress = EgressPolicy::for_peer(peer).with_listener(listener);
    if request.method() == Method::CONNECT {
        return forward::open_tunnel(&port.tunnels, request, egress, permit).await;
    }
    if request.uri().scheme().is_some() {
        return forward::forward_request(&port.tunnels, request, egress, permit).await;
    }
    let is_same_site = origin_check::is_same_site(request.headers());
    let mut response = port.media.handle(&request, (listener, peer), &permit).await;
    if is_same_site {
        // The player page is served from another port. Browsers load media from an IP address for it only with this
        // field.
        let name = "cross-origin-resource-policy";
        response.headers_mut().insert(name, http::HeaderValue::from_static("cross-origin"));
    }
    response
}
