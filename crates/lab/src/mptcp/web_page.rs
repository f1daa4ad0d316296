//! A web page of 107 objects over six connections that are kept (eMPTCP §5.4: a copy of CNN's home page as of
//! 9/11/2014, and Android's browser).
//!
//! In: what sockets speak. Out: the time until the last object is there.
//!
//! 1. The paper says of the objects that almost all are smaller than 256 KB, and that eMPTCP never joined LTE. The sizes
//!    here follow the shape that pages of that year have (HTTP Archive, September 2014: a mean of 1.8 MB and 95 requests):
//!    logarithmically spread around 9 KB, a document of 120 KB first and one object above 256 KB. chosen: 2.2 MB in all.
//! 2. The document comes first over one connection, as nobody knows the rest before. Then six connections take objects
//!    off one list, each asking for the next one when it has the last one whole (HTTP/1.1 without pipelining).
//! 3. Nothing is cached, and no script delays anything: the page's own latency would only hide the network's.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use marline_core::units::DataSize;

use super::http_client::{Connection, SocketProtocol, StopCondition};

/// Objects of the page, its document first.
pub(crate) const OBJECT_COUNT: usize = 107;
/// Connections of the browser to one server.
pub(crate) const MAX_CONNECTIONS: usize = 6;

/// The sizes: the same for ever.
pub(crate) fn objects() -> Vec<DataSize> {
    let mut sizes = vec![DataSize::from_bytes(120_000)];
    let smaller = OBJECT_COUNT as u64 - 2;
    // Each object at a place of its own in the distribution; the places in an order that looks like chance.
    sizes.extend((0..smaller).map(|at| size_at_quantile((at * 47 % smaller) as f64 / smaller as f64)));
    sizes.insert(OBJECT_COUNT / 3, DataSize::from_bytes(340_000));
    sizes
}

/// The size below which this share of objects is: 9 KB × e^(±z), by the logistic distribution.
fn size_at_quantile(share: f64) -> DataSize {
    let share = share.mul_add(0.98, 0.01);
    DataSize::from_bytes((9_000.0 * (share / (1.0 - share)).powf(0.7)).min(250_000.0) as u64)
}

/// Writes the page's objects as files into a directory that is served.
pub(crate) fn write_objects(directory: &Path) -> io::Result<()> {
    for (at, size) in objects().into_iter().enumerate() {
        let body: Vec<u8> = (0..size.bytes()).map(|byte| (byte.wrapping_mul(31) >> 3) as u8 ^ at as u8).collect();
        std::fs::write(directory.join(object_name(at)), body)?;
    }
    Ok(())
}

fn object_name(index: usize) -> String {
    format!("object-{index}")
}

/// What came of a page.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct PageResult {
    /// Of all objects.
    pub(crate) bytes: u64,
    /// From the first connection's beginning to the last object's last byte.
    pub(crate) time: Duration,
}

/// Loads it. Use it on a thread at the client's end.
pub(crate) fn load_page(socket_protocol: SocketProtocol<'_>, limit: Duration) -> io::Result<PageResult> {
    let start = Instant::now();
    let until = StopCondition { limit, stop_after: None, wants_sha256: false };
    let mut first = Connection::open(socket_protocol, limit)?;
    let document = first.get(&object_name(0), start, until)?;
    let next = AtomicUsize::new(1);
    let take = |connection: Option<Connection>| -> io::Result<(Connection, u64)> {
        let mut connection = connection.map_or_else(|| Connection::open(socket_protocol, limit), Ok)?;
        let mut bytes = 0;
        loop {
            match next.fetch_add(1, Ordering::Relaxed) {
                at if at < OBJECT_COUNT => bytes += connection.get(&object_name(at), start, until)?.bytes,
                // Kept until the page is whole, as a browser does.
                _ => return Ok((connection, bytes)),
            }
        }
    };
    let mut connections: Vec<Option<Connection>> = vec![Some(first)];
    connections.resize_with(MAX_CONNECTIONS, || None);
    let taken = std::thread::scope(|scope| {
        let threads: Vec<_> = connections.into_iter().map(|connection| scope.spawn(|| take(connection))).collect();
        let broken = || Err(io::Error::other("a connection broke down"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| broken())).collect::<io::Result<Vec<_>>>()
    })?;
    let time = start.elapsed();
    Ok(PageResult { bytes: document.bytes + taken.iter().map(|(_, bytes)| bytes).sum::<u64>(), time })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_the_papers_shape() {
        let sizes: Vec<u64> = objects().iter().map(|size| size.bytes()).collect();
        assert_eq!(sizes.len(), OBJECT_COUNT);
        assert_eq!(sizes.iter().filter(|size| **size > 256_000).count(), 1);
        let sum: u64 = sizes.iter().sum();
        assert!((1_800_000..2_800_000).contains(&sum), "{sum}");
        // None of six connections carries a megabyte, if they share evenly.
        assert!(sum / MAX_CONNECTIONS as u64 * 2 < 1_000_000);
        assert_eq!(objects(), objects());
    }

    #[test]
    fn its_files_have_these_sizes() {
        let directory = tempfile::tempdir().unwrap();
        write_objects(directory.path()).unwrap();
        let size = std::fs::metadata(directory.path().join(object_name(0))).unwrap().len();
        assert_eq!(size, 120_000);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), OBJECT_COUNT);
    }
}
