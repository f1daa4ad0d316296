//! Happy Eyeballs (RFC 8305): connects to the first of several addresses of a server that responds.
//!
//! Address families alternate. The next address is tried as soon as an attempt fails, or after [`CONNECTION_ATTEMPT_DELAY`] while an
//! attempt is still running (RFC 8305 §4, §5). Dropping the future cancels all running attempts. If all fail, the last
//! error is returned.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Delay before the next attempt: 250 ms (RFC 8305 §8).
const CONNECTION_ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// The first connection that succeeds.
pub(crate) async fn connect_first<F>(
    addresses: &[SocketAddr],
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<TcpStream>
where
    F: Future<Output = io::Result<TcpStream>> + Send + 'static,
{
    let mut remaining = interleave_families(addresses).into_iter();
    let mut running = JoinSet::new();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "no address");
    loop {
        if let Some(address) = remaining.next() {
            running.spawn(connect(address));
        }
        let is_last = remaining.len() == 0;
        // Whichever comes first: an attempt ends, or the delay passes while addresses remain.
        tokio::select! {
            joined = running.join_next() => match joined {
                Some(Ok(Ok(socket))) => return Ok(socket),
                Some(Ok(Err(error))) => last = error,
                Some(Err(error)) => last = io::Error::other(error),
                None if is_last => return Err(last),
                None => {}
            },
            () = sleep(CONNECTION_ATTEMPT_DELAY), if !is_last => {}
        }
    }
}

/// The addresses with alternating families, beginning with the family of the first address.
pub(crate) fn interleave_families(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first_family, second_family): (Vec<_>, Vec<_>) =
        addresses.iter().partition(|address| address.is_ipv6() == first_is_v6);
    let longest = first_family.len().max(second_family.len());
    (0..longest).flat_map(|at| [first_family.get(at).copied(), second_family.get(at).copied()]).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    fn block_on(future: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future);
    }

    #[test]
    fn address_families_alternate() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let (a, b, c, d) = (at("[::1]:1"), at("[::2]:1"), at("[::3]:1"), at("1.2.3.4:1"));
        assert_eq!(interleave_families(&[a, b, c, d]), [a, d, b, c]);
        assert_eq!(interleave_families(&[d, a]), [d, a]);
        assert_eq!(interleave_families(&[]), []);
    }

    #[test]
    fn the_next_address_is_tried_when_one_hangs_or_fails() {
        block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let good = listener.local_addr().unwrap();
            let (hangs, fails): (SocketAddr, SocketAddr) =
                ("192.0.2.1:1".parse().unwrap(), "192.0.2.2:1".parse().unwrap());
            let connect = move |address| async move {
                if address == hangs {
                    std::future::pending::<()>().await;
                }
                if address == fails {
                    return Err(io::ErrorKind::ConnectionRefused.into());
                }
                TcpStream::connect(address).await
            };
            let reached = connect_first(&[fails, hangs, good], connect).await.unwrap();
            assert_eq!(reached.peer_addr().unwrap(), good);
            // Seven refusals would take 1.75 s if each were delayed.
            let mut addresses = vec![fails; 7];
            addresses.push(good);
            assert!(
                timeout(CONNECTION_ATTEMPT_DELAY * 4, connect_first(&addresses, connect)).await.unwrap().is_ok()
            );
            assert_eq!(
                connect_first(&[fails; 3], connect).await.unwrap_err().kind(),
                io::ErrorKind::ConnectionRefused
            );
            assert_eq!(connect_first(&[], connect).await.unwrap_err().kind(), io::ErrorKind::NotFound);
        });
    }
}
