//! A web page of 107 objects, loaded over six persistent connections (eMPTCP section 5.4: a copy of CNN's home page
//! of 2014-09-11, in Android's browser).
//!
//! 1. The paper states that almost all objects are smaller than 256 KB, and that eMPTCP never opened a subflow over
//!    LTE. The sizes here follow the distribution of pages of that year (HTTP Archive, September 2014: on average
//!    1.8 MB and 95 requests). They are logarithmically spread around 9 KB, with a document of 120 KB first and one
//!    object above 256 KB. Our choice: 2.2 MB in total.
//! 2. The document is loaded first over one connection, because the browser learns the other objects from it. Then
//!    six connections take objects from one list, each requesting the next one after the last is complete (HTTP/1.1
//!    without pipelining).
//! 3. There is no cache and no script: the page's own latency would only mask that of the network.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use marline_core::units::DataSize;

use super::http_client::{Connection, SocketProtocol, StopCondition};

/// Number of objects, including the document.
pub(crate) const OBJECT_COUNT: usize = 107;
/// Number of connections that the browser opens to one server.
pub(crate) const MAX_CONNECTIONS: usize = 6;

/// Sizes of the objects, document first; always the same.
pub(crate) fn objects() -> Vec<DataSize> {
    let mut sizes = vec![DataSize::from_bytes(120_000)];
    let smaller = OBJECT_COUNT as u64 - 2;
    // Each object has its own quantile of the distribution. Multiplying by 47 permutes the quantiles, so that sizes
    // look random.
    sizes.extend((0..smaller).map(|at| size_at_quantile((at * 47 % smaller) as f64 / smaller as f64)));
    sizes.insert(OBJECT_COUNT / 3, DataSize::from_bytes(340_000));
    sizes
}

/// Size below which this share of the objects lies, by a log-logistic distribution around 9 KB.
fn size_at_quantile(share: f64) -> DataSize {
    let share = share.mul_add(0.98, 0.01);
    DataSize::from_bytes((9_000.0 * (share / (1.0 - share)).powf(0.7)).min(250_000.0) as u64)
}

/// Writes the objects as files into the served directory.
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

/// Result of loading the page.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct PageResult {
    /// Bytes of all objects.
    pub(crate) bytes: u64,
    /// Time from before the first connection attempt to the last byte of the last object.
    pub(crate) time: Duration,
}

/// Loads the page; must run on a thread in the client namespace.
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
                // Keep the connection open until the page is complete, as a browser does.
                _ => return Ok((connection, bytes)),
            }
        }
    };
    let mut connections: Vec<Option<Connection>> = vec![Some(first)];
    connections.resize_with(MAX_CONNECTIONS, || None);
    let taken = std::thread::scope(|scope| {
        let threads: Vec<_> = connections.into_iter().map(|connection| scope.spawn(|| take(connection))).collect();
        let broken = || Err(io::Error::other("the thread of a connection panicked"));
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
        // With an even distribution none of the six connections carries a megabyte.
        assert!(sum / MAX_CONNECTIONS as u64 * 2 < 1_000_000);
        assert_eq!(objects(), objects());
    }

    #[test]
    fn the_files_have_the_sizes_of_the_objects() {
        let directory = tempfile::tempdir().unwrap();
        write_objects(directory.path()).unwrap();
        let size = std::fs::metadata(directory.path().join(object_name(0))).unwrap().len();
        assert_eq!(size, 120_000);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), OBJECT_COUNT);
    }
}
