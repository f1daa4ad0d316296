//! Byte counters of each link, and the list of open flows that are carried for clients.
//!
//! Downloads add their bytes as they report them. A [`Flow`] has counters of its own, so that counting needs no
//! look-up of its link. They are added to the link when the flow ends.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Counts the bytes of each link, and lists the open flows of clients.
#[derive(Debug, Default)]
pub struct Traffic {
    links: RefCell<BTreeMap<String, LinkCounters>>,
    /// Bytes that downloads have sent over each link.
    sent_counters: RefCell<BTreeMap<String, Arc<AtomicU64>>>,
    flows: RefCell<BTreeMap<u64, Weak<Flow>>>,
    next_id: Cell<u64>,
}

/// Traffic of one link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LinkCounters {
    /// Bytes received over the link.
    pub rx_bytes: u64,
    /// Bytes sent over the link.
    pub tx_bytes: u64,
    /// Number of open flows.
    pub open_flows: u64,
    /// Number of flows since the start, including closed ones.
    pub total_flows: u64,
}

/// Byte counters of one flow.
#[derive(Debug, Default)]
pub struct FlowCounters {
    /// Bytes received from the server.
    pub rx_bytes: AtomicU64,
    /// Bytes sent to the server.
    pub tx_bytes: AtomicU64,
}

/// A connection that is carried for a client (SOCKS5, CONNECT).
#[derive(Debug)]
pub struct Flow {
    traffic: Rc<Traffic>,
    /// Number of the flow, unique in this process.
    pub id: u64,
    /// How the client requested it: `connect`, `socks5` and so on.
    pub kind: &'static str,
    /// Destination host, as the client requested it.
    pub host: String,
    /// Destination port, as the client requested it.
    pub port: u16,
    /// Address of the client; none: this host.
    pub client: Option<std::net::IpAddr>,
    /// The link that carries it; none: the destination is this host.
    pub link: Option<String>,
    /// Time at which it was opened.
    pub opened_at: Instant,
    /// Byte counters of the flow; they are added to its link when it ends.
    pub counters: Arc<FlowCounters>,
}

impl Traffic {
    /// Adds received bytes of a download to a link.
    pub fn add_received(&self, link: &str, bytes: u64) {
        let mut links = self.links.borrow_mut();
        links.entry(link.to_owned()).or_default().rx_bytes += bytes;
    }

    /// The counter of bytes that downloads send over a link.
    pub fn sent_counter(&self, link: &str) -> Arc<AtomicU64> {
        Arc::clone(self.sent_counters.borrow_mut().entry(link.to_owned()).or_default())
    }

    /// Registers a new flow. It is open until the returned value is dropped.
    pub fn open_flow(
        self: &Rc<Self>,
        kind: &'static str,
        (host, port): (&str, u16),
        client: Option<std::net::IpAddr>,
        link: Option<&str>,
    ) -> Rc<Flow> {
        let id = self.next_id.replace(self.next_id.get() + 1);
        let flow = Rc::new(Flow {
            traffic: Rc::clone(self),
            id,
            kind,
            host: host.to_owned(),
            port,
            client,
            link: link.map(str::to_owned),
            opened_at: Instant::now(),
            counters: Arc::default(),
        });
        self.flows.borrow_mut().insert(id, Rc::downgrade(&flow));
        if let Some(link) = link {
            self.links.borrow_mut().entry(link.to_owned()).or_default().total_flows += 1;
        }
        flow
    }

    /// The traffic of a link up to now, including open flows.
    pub fn link_counters(&self, link: &str) -> LinkCounters {
        let mut sum = self.links.borrow().get(link).copied().unwrap_or_default();
        sum.tx_bytes += self.sent_counters.borrow().get(link).map_or(0, |sent| sent.load(Ordering::Relaxed));
        for flow in self.flows().iter().filter(|flow| flow.link.as_deref() == Some(link)) {
            sum.open_flows += 1;
            sum.rx_bytes += flow.counters.rx_bytes.load(Ordering::Relaxed);
            sum.tx_bytes += flow.counters.tx_bytes.load(Ordering::Relaxed);
        }
        sum
    }

    /// The open flows, the newest first.
    pub fn flows(&self) -> Vec<Rc<Flow>> {
        self.flows.borrow().values().rev().filter_map(Weak::upgrade).collect()
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.traffic.flows.borrow_mut().remove(&self.id);
        if let Some(link) = &self.link {
            let mut links = self.traffic.links.borrow_mut();
            let sum = links.entry(link.clone()).or_default();
            sum.rx_bytes += self.counters.rx_bytes.load(Ordering::Relaxed);
            sum.tx_bytes += self.counters.tx_bytes.load(Ordering::Relaxed);
        }
    }
}

/// A TCP connection with byte counters.
#[derive(Debug)]
pub struct CountingStream {
    stream: TcpStream,
    counters: Arc<FlowCounters>,
}

impl CountingStream {
    /// Counts the bytes that are read and written from now on.
    pub fn new(stream: TcpStream, count: Arc<FlowCounters>) -> Self {
        Self { stream, counters: count }
    }

    /// Returns the connection. Its further bytes are not counted.
    pub fn into_inner(self) -> TcpStream {
        self.stream
    }
}

impl AsyncRead for CountingStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.counters.rx_bytes.fetch_add((buf.filled().len() - before) as u64, Ordering::Relaxed);
        read
    }
}

impl AsyncWrite for CountingStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(len)) = written {
            self.counters.tx_bytes.fetch_add(len as u64, Ordering::Relaxed);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_counted_while_they_are_open_and_afterwards() {
        let traffic = Rc::new(Traffic::default());
        traffic.add_received("wifi0", 10);
        let flow = traffic.open_flow("connect", ("h.test", 443), None, Some("wifi0"));
        let local = traffic.open_flow("socks5", ("localhost", 80), None, None);
        flow.counters.rx_bytes.fetch_add(5, Ordering::Relaxed);
        flow.counters.tx_bytes.fetch_add(2, Ordering::Relaxed);
        assert_eq!(
            traffic.link_counters("wifi0"),
            LinkCounters { rx_bytes: 15, tx_bytes: 2, open_flows: 1, total_flows: 1 }
        );
        assert_eq!(
            traffic.flows().iter().map(|flow| flow.host.as_str()).collect::<Vec<_>>(),
            ["localhost", "h.test"]
        );
        drop((flow, local));
        traffic.sent_counter("wifi0").fetch_add(7, Ordering::Relaxed);
        assert_eq!(
            traffic.link_counters("wifi0"),
            LinkCounters { rx_bytes: 15, tx_bytes: 9, open_flows: 0, total_flows: 1 }
        );
        assert!(traffic.flows().is_empty() && traffic.flows.borrow().is_empty());
        assert_eq!(traffic.link_counters("lte0"), LinkCounters::default());
    }
}
