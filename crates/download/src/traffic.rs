//! What went over each link, and which connections are open for others than players.
//!
//! Transfers of our own are added as they report; a [`Flow`] counts by itself, piece by piece, without looking up
//! its link, and is added to it when it ends.

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

/// Counts what went over each link, and the connections that are open for others than players.
#[derive(Debug, Default)]
pub struct Traffic {
    links: RefCell<BTreeMap<String, Sum>>,
    /// What transfers of our own have sent over each link.
    sent: RefCell<BTreeMap<String, Arc<AtomicU64>>>,
    flows: RefCell<BTreeMap<u64, Weak<Flow>>>,
    next: Cell<u64>,
}

/// What went over one link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sum {
    /// Bytes received.
    pub down: u64,
    /// Bytes sent.
    pub up: u64,
    /// Flows that are open.
    pub open: u64,
    /// Flows so far.
    pub flows: u64,
}

/// Bytes of one flow.
#[derive(Debug, Default)]
pub struct Count {
    /// Received.
    pub down: AtomicU64,
    /// Sent.
    pub up: AtomicU64,
}

/// A connection that is carried for a client.
#[derive(Debug)]
pub struct Flow {
    traffic: Rc<Traffic>,
    /// Its number, unique in this process.
    pub id: u64,
    /// In which way it was asked for.
    pub kind: &'static str,
    /// The host that it leads to.
    pub host: String,
    /// The port there.
    pub port: u16,
    /// None: this machine.
    pub client: Option<std::net::IpAddr>,
    /// None: this machine itself is the host.
    pub link: Option<String>,
    /// When it was opened.
    pub began: Instant,
    /// What it has carried.
    pub count: Arc<Count>,
}

impl Traffic {
    /// A transfer has received so much over a link.
    pub fn received(&self, link: &str, bytes: u64) {
        let mut links = self.links.borrow_mut();
        match links.get_mut(link) {
            Some(sum) => sum.down += bytes,
            None => drop(links.insert(link.to_owned(), Sum { down: bytes, ..Sum::default() })),
        }
    }

    /// The counter of what transfers of our own send over a link.
    pub fn sent(&self, link: &str) -> Arc<AtomicU64> {
        Arc::clone(self.sent.borrow_mut().entry(link.to_owned()).or_default())
    }

    /// A flow begins.
    pub fn flow(
        self: &Rc<Self>,
        kind: &'static str,
        (host, port): (&str, u16),
        client: Option<std::net::IpAddr>,
        link: Option<&str>,
    ) -> Rc<Flow> {
        let id = self.next.replace(self.next.get() + 1);
        let flow = Rc::new(Flow {
            traffic: Rc::clone(self),
            id,
            kind,
            host: host.to_owned(),
            port,
            client,
            link: link.map(str::to_owned),
            began: Instant::now(),
            count: Arc::default(),
        });
        self.flows.borrow_mut().insert(id, Rc::downgrade(&flow));
        if let Some(link) = link {
            self.links.borrow_mut().entry(link.to_owned()).or_default().flows += 1;
        }
        flow
    }

    /// What went over a link by now.
    pub fn of(&self, link: &str) -> Sum {
        let mut sum = self.links.borrow().get(link).copied().unwrap_or_default();
        sum.up += self.sent.borrow().get(link).map_or(0, |sent| sent.load(Ordering::Relaxed));
        for flow in self.flows().iter().filter(|flow| flow.link.as_deref() == Some(link)) {
            sum.open += 1;
            sum.down += flow.count.down.load(Ordering::Relaxed);
            sum.up += flow.count.up.load(Ordering::Relaxed);
        }
        sum
    }

    /// The flows that are open, the newest first.
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
            sum.down += self.count.down.load(Ordering::Relaxed);
            sum.up += self.count.up.load(Ordering::Relaxed);
        }
    }
}

/// A connection to a server whose bytes are counted.
#[derive(Debug)]
pub struct Counted {
    stream: TcpStream,
    count: Arc<Count>,
}

impl Counted {
    /// Counts what is read and written from now on.
    pub fn new(stream: TcpStream, count: Arc<Count>) -> Self {
        Self { stream, count }
    }

    /// The connection; what goes over it is no longer counted.
    pub fn into_inner(self) -> TcpStream {
        self.stream
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.count.down.fetch_add((buf.filled().len() - before) as u64, Ordering::Relaxed);
        read
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(len)) = written {
            self.count.up.fetch_add(len as u64, Ordering::Relaxed);
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
        traffic.received("wifi0", 10);
        let flow = traffic.flow("connect", ("h.test", 443), None, Some("wifi0"));
        let local = traffic.flow("socks5", ("localhost", 80), None, None);
        flow.count.down.fetch_add(5, Ordering::Relaxed);
        flow.count.up.fetch_add(2, Ordering::Relaxed);
        assert_eq!(traffic.of("wifi0"), Sum { down: 15, up: 2, open: 1, flows: 1 });
        assert_eq!(
            traffic.flows().iter().map(|flow| flow.host.as_str()).collect::<Vec<_>>(),
            ["localhost", "h.test"]
        );
        drop((flow, local));
        traffic.sent("wifi0").fetch_add(7, Ordering::Relaxed);
        assert_eq!(traffic.of("wifi0"), Sum { down: 15, up: 9, open: 0, flows: 1 });
        assert!(traffic.flows().is_empty() && traffic.flows.borrow().is_empty());
        assert_eq!(traffic.of("lte0"), Sum::default());
    }
}
