//! Queries one DNS server for the addresses of one name over one link.
//!
//! 1. The queries for both address families are sent at once from one socket, with its own port and random IDs (RFC
//!    5452 section 4).
//! 2. After one family was answered with addresses, the other one gets 50 ms more (RFC 8305 section 3).
//! 3. If no address has arrived when the first timeout ends, unanswered queries are sent once more. A truncated
//!    response is fetched over TCP (RFC 7766 section 5). A server that does not support EDNS is queried again without
//!    it (RFC 6891 section 7).
//! 4. Datagrams that are not a response to a pending query are ignored and do not end the wait.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, UdpSocket};
use tokio::time::{Instant, timeout, timeout_at};

use super::message::{DnsResponse, FORMAT_ERROR, Family, NOT_IMPLEMENTED, decode_response, encode_query};

/// The address records that a server returned for a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct AddressRecords {
    /// Addresses of both families, in the server's order; never empty.
    pub(super) addresses: Vec<IpAddr>,
    /// How long they may be cached.
    pub(super) ttl: Duration,
}

/// Why a server returned no address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum QueryError {
    /// The server responded that the name or its addresses do not exist; another server of the link would respond the
    /// same.
    NoAddress(String),
    /// The server did not respond or reported a failure; another server might respond.
    ServerFailed(String),
}

/// Our choice: how long each of the two rounds waits for responses. The first one covers the RTT of the slowest
/// satellite link. Both together are shorter than glibc's timeout for an unresponsive server (5 s).
const RETRY_TIMEOUTS: [Duration; 2] = [Duration::from_millis(800), Duration::from_millis(1200)];

/// The "Resolution Delay" of RFC 8305 section 3.
const RESOLUTION_DELAY: Duration = Duration::from_millis(50);

/// A query that was not answered yet.
struct PendingQuery {
    family: Family,
    id: u16,
    edns: bool,
}

impl PendingQuery {
    fn new(family: Family) -> Self {
        Self { family, id: random_id(), edns: true }
    }
}

/// Queries the server, from a socket bound to `device` if one is given.
pub(super) async fn query(
    server: SocketAddr,
    device: Option<&str>,
    name: &str,
    families: &[Family],
) -> Result<AddressRecords, QueryError> {
    let failed = |error: io::Error| QueryError::ServerFailed(format!("DNS server {server}: {error}"));
    let socket = udp_socket(server, device).map_err(failed)?;
    let mut exchange = QueryExchange {
        server,
        device,
        name,
        pending: families.iter().copied().map(PendingQuery::new).collect(),
        records: None,
        error: None,
    };
    let mut buffer = vec![0; 4096];
    // Each round sends what is still unanswered. A received address shortens the wait for the other family.
    for round in RETRY_TIMEOUTS {
        for question in &exchange.pending {
            exchange.send(&socket, question).await.map_err(failed)?;
        }
        let mut deadline = Instant::now() + round;
        while !exchange.pending.is_empty() {
            match timeout_at(deadline, socket.recv(&mut buffer)).await {
                Ok(received) => {
                    let bytes = buffer.get(..received.map_err(failed)?).unwrap_or_default();
                    if exchange.on_datagram(&socket, bytes).await.map_err(failed)? && exchange.records.is_some() {
                        deadline = deadline.min(Instant::now() + RESOLUTION_DELAY);
                    }
                }
                Err(_) => break,
            }
        }
        if exchange.records.is_some() || exchange.pending.is_empty() {
            break;
        }
    }
    let timed_out = || QueryError::ServerFailed(format!("DNS server {server} does not answer"));
    exchange.records.ok_or_else(|| exchange.error.filter(|_| exchange.pending.is_empty()).unwrap_or_else(timed_out))
}

/// The state of one exchange with a server.
struct QueryExchange<'a> {
    server: SocketAddr,
    device: Option<&'a str>,
    name: &'a str,
    pending: Vec<PendingQuery>,
    /// The addresses that were received so far.
    records: Option<AddressRecords>,
    /// Why a query was answered without an address.
    error: Option<QueryError>,
}

impl QueryExchange<'_> {
    async fn send(&self, socket: &UdpSocket, question: &PendingQuery) -> io::Result<()> {
        let bytes = self.encode(question)?;
        // A server that was just stopped makes this fail (ICMP error); the next round may succeed.
        socket.send(&bytes).await.map(|_| ())
    }

    fn encode(&self, pending: &PendingQuery) -> io::Result<Vec<u8>> {
        let invalid =
            || io::Error::new(io::ErrorKind::InvalidInput, format!("`{}` is not a valid host name", self.name));
        encode_query(pending.id, self.name, pending.family, pending.edns).ok_or_else(invalid)
    }

    /// Handles a datagram; returns whether it was a response to a pending query.
    async fn on_datagram(&mut self, socket: &UdpSocket, bytes: &[u8]) -> io::Result<bool> {
        let matching_reply = |open: &PendingQuery| decode_response(bytes, open.id, self.name, open.family);
        let Some((at, parsed)) =
            self.pending.iter().enumerate().find_map(|(at, open)| Some((at, matching_reply(open)?)))
        else {
            return Ok(false);
        };
        let mut open = self.pending.swap_remove(at);
        match parsed {
            DnsResponse::Truncated => {
                let tcp_reply = timeout(RETRY_TIMEOUTS[1], self.query_over_tcp(&open)).await;
                match tcp_reply.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                    Ok(reply) => self.on_reply(reply),
                    Err(error) => self.set_error(format!("over TCP: {error}")),
                }
            }
            DnsResponse::Failure(FORMAT_ERROR | NOT_IMPLEMENTED) if open.edns => {
                open.edns = false;
                self.send(socket, &open).await?;
                self.pending.push(open);
            }
            reply => self.on_reply(reply),
        }
        Ok(true)
    }

    fn on_reply(&mut self, reply: DnsResponse) {
        match reply {
            DnsResponse::Addresses { addresses, ttl } if !addresses.is_empty() => {
                let records = self.records.get_or_insert_with(|| AddressRecords { addresses: Vec::new(), ttl });
                records.addresses.extend(addresses);
                records.ttl = records.ttl.min(ttl);
            }
            DnsResponse::Addresses { .. } => {
                self.error.get_or_insert_with(|| {
                    QueryError::NoAddress(format!("{} has no address that this link can use", self.name))
                });
            }
            DnsResponse::NoSuchName => {
                self.error = Some(QueryError::NoAddress(format!(
                    "{}: no such name according to {}",
                    self.name,
                    self.server.ip()
                )));
                self.pending.clear();
            }
            DnsResponse::Failure(code) => self.set_error(format!("response code {code}")),
            DnsResponse::Truncated => self.set_error("truncated even over TCP".to_owned()),
        }
    }

    fn set_error(&mut self, why: String) {
        self.error = Some(QueryError::ServerFailed(format!("DNS server {}: {why}", self.server)));
    }

    /// Repeats the query over TCP.
    async fn query_over_tcp(&self, pending: &PendingQuery) -> io::Result<DnsResponse> {
        let socket = if self.server.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.bind_device(self.device.map(str::as_bytes))?;
        let mut stream = socket.connect(self.server).await?;
        let question = self.encode(pending)?;
        let framed = [&(question.len() as u16).to_be_bytes()[..], &question].concat();
        stream.write_all(&framed).await?;
        let mut bytes = vec![0; usize::from(stream.read_u16().await?)];
        stream.read_exact(&mut bytes).await?;
        let mismatch = || io::Error::new(io::ErrorKind::InvalidData, "the response belongs to another query");
        decode_response(&bytes, pending.id, self.name, pending.family).ok_or_else(mismatch)
    }
}

/// A UDP socket that exchanges datagrams with this server only.
fn udp_socket(server: SocketAddr, device: Option<&str>) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(server), Type::DGRAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind_device(device.map(str::as_bytes))?;
    socket.connect(&server.into())?;
    UdpSocket::from_std(socket.into())
}

/// An unpredictable number: the standard library seeds its hash keys from the kernel's random source.
fn random_id() -> u16 {
    RandomState::new().build_hasher().finish() as u16
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, UdpSocket as Server};
    use std::thread;

    use super::*;
    use crate::dns::message::tests::response;

    const A: u16 = 1;
    const AAAA: u16 = 28;

    /// The record type of a query.
    fn question_type(question: &[u8]) -> u16 {
        let name = question[12..].iter().position(|b| *b == 0).unwrap();
        u16::from_be_bytes([question[13 + name], question[14 + name]])
    }

    /// Queries a server that responds to each datagram with those that `script` returns, until the exchange ends.
    fn query_scripted(
        families: &[Family],
        script: impl FnMut(&[u8]) -> Vec<Vec<u8>> + Send,
    ) -> Result<AddressRecords, QueryError> {
        let server = Server::bind("127.0.0.1:0").unwrap();
        query_server_script(server, families, script)
    }

    fn query_server_script(
        server: Server,
        families: &[Family],
        mut script: impl FnMut(&[u8]) -> Vec<Vec<u8>> + Send,
    ) -> Result<AddressRecords, QueryError> {
        server.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let address = server.local_addr().unwrap();
        let is_done = std::sync::atomic::AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut buffer = [0; 1500];
                while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                    let Ok((length, from)) = server.recv_from(&mut buffer) else { continue };
                    for datagram in script(&buffer[..length]) {
                        server.send_to(&datagram, from).unwrap();
                    }
                }
            });
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let result = runtime.block_on(query(address, None, "edge.test", families));
            is_done.store(true, std::sync::atomic::Ordering::Relaxed);
            result
        })
    }

    fn answer_v4(question: &[u8]) -> Vec<u8> {
        response(question, 0, &[("", A, vec![203, 0, 113, 5])])
    }

    fn found(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn forged_responses_are_ignored_and_the_real_one_is_awaited() {
        let result = query_scripted(&[Family::V4], |question| {
            let forged = |question: &[u8]| response(question, 0, &[("", A, vec![6, 6, 6, 6])]);
            let mut other_id = question.to_vec();
            other_id[0] ^= 0x55;
            let mut other_name = question.to_vec();
            other_name[13] = b'f';
            let mut other_type = question.to_vec();
            let at = 12 + 11 + 1;
            other_type[at] = 28;
            let mut not_an_answer = answer_v4(question);
            not_an_answer[2] &= 0x7f;
            vec![
                Vec::new(),
                vec![0xff; 700],
                question.to_vec(),
                forged(&other_id),
                forged(&other_name),
                forged(&other_type),
                not_an_answer,
                answer_v4(question)[..20].to_vec(),
                answer_v4(question),
            ]
        });
        assert_eq!(result.unwrap().addresses, found(&["203.0.113.5"]));
    }

    #[test]
    fn a_lost_datagram_is_sent_again() {
        let mut query_count = 0;
        let result = query_scripted(&[Family::V4], |question| {
            query_count += 1;
            if query_count == 1 { Vec::new() } else { vec![answer_v4(question)] }
        });
        assert_eq!(result.unwrap().addresses, found(&["203.0.113.5"]));
        assert_eq!(query_count, 2);
    }

    #[test]
    fn a_family_without_response_does_not_delay_the_other() {
        let result = query_scripted(&[Family::V4, Family::V6], |question| {
            if question_type(question) == AAAA { Vec::new() } else { vec![answer_v4(question)] }
        });
        assert_eq!(result.unwrap().addresses, found(&["203.0.113.5"]));
        let both = query_scripted(&[Family::V4, Family::V6], |question| {
            let six = vec![0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5];
            vec![if question_type(question) == AAAA {
                response(question, 0, &[("", AAAA, six)])
            } else {
                answer_v4(question)
            }]
        });
        let mut addresses = both.unwrap().addresses;
        addresses.sort();
        assert_eq!(addresses, found(&["203.0.113.5", "2001:db8::5"]));
    }

    #[test]
    fn timeouts_and_errors_are_failures_and_no_such_name_is_definitive() {
        let timed_out = query_scripted(&[Family::V4, Family::V6], |_| Vec::new()).unwrap_err();
        assert!(
            matches!(&timed_out, QueryError::ServerFailed(why) if why.ends_with("does not answer")),
            "{timed_out:?}"
        );
        let broken = query_scripted(&[Family::V4], |question| vec![response(question, 2, &[])]).unwrap_err();
        assert!(matches!(&broken, QueryError::ServerFailed(why) if why.ends_with("response code 2")), "{broken:?}");
        let no_such_name =
            query_scripted(&[Family::V4, Family::V6], |question| vec![response(question, 3, &[])]).unwrap_err();
        assert_eq!(no_such_name, QueryError::NoAddress("edge.test: no such name according to 127.0.0.1".into()));
        let empty =
            query_scripted(&[Family::V4, Family::V6], |question| vec![response(question, 0, &[])]).unwrap_err();
        assert_eq!(empty, QueryError::NoAddress("edge.test has no address that this link can use".into()));
        let closed = Server::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let refused = runtime.block_on(query(closed, None, "edge.test", &[Family::V4])).unwrap_err();
        assert!(matches!(&refused, QueryError::ServerFailed(_)), "{refused:?}");
    }

    #[test]
    fn a_server_without_edns_is_queried_without_it() {
        let result = query_scripted(&[Family::V4], |question| {
            let additional = question[11];
            vec![if additional == 1 { response(question, FORMAT_ERROR.into(), &[]) } else { answer_v4(question) }]
        });
        assert_eq!(result.unwrap().addresses, found(&["203.0.113.5"]));
    }

    /// A scripted server that truncates over UDP, and responds over TCP with what `script` returns for the query.
    fn query_truncated(script: impl Fn(&[u8]) -> Vec<u8> + Send) -> Result<AddressRecords, QueryError> {
        // A port that is free for one protocol may be in use for the other.
        let pairs = std::iter::repeat_with(|| {
            let server = Server::bind("127.0.0.1:0").ok()?;
            let listener = TcpListener::bind(server.local_addr().ok()?).ok()?;
            Some((server, listener))
        });
        let (server, listener) = pairs.take(100).flatten().next().unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut length = [0; 2];
                stream.read_exact(&mut length).unwrap();
                let mut question = vec![0; u16::from_be_bytes(length).into()];
                stream.read_exact(&mut question).unwrap();
                stream.write_all(&script(&question)).unwrap();
            });
            query_server_script(server, &[Family::V4], |question| vec![response(question, 0x0200, &[])])
        })
    }

    #[test]
    fn a_truncated_response_is_fetched_over_tcp() {
        let framed = |bytes: Vec<u8>| [&(bytes.len() as u16).to_be_bytes()[..], &bytes].concat();
        let outcome = query_truncated(|question| framed(answer_v4(question)));
        assert_eq!(outcome.unwrap().addresses, found(&["203.0.113.5"]));
        for invalid in [
            query_truncated(|question| framed(response(question, 0x0200, &[]))),
            query_truncated(|question| framed(answer_v4(question))[..9].to_vec()),
            query_truncated(|_| framed(vec![7; 40])),
            query_truncated(|_| Vec::new()),
        ] {
            assert!(
                matches!(&invalid, Err(QueryError::ServerFailed(why)) if why.contains("over TCP")),
                "{invalid:?}"
            );
        }
    }
}
