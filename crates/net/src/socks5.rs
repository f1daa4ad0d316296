//! SOCKS5 server side (RFC 1928): CONNECT without authentication, to IPv4 and IPv6 addresses and to names.
//!
//! It reads the greeting and the request of a client, from the first byte (the version, 5) on: a caller that
//! distinguishes protocols by this byte must only peek at it. It returns the requested host and port, or the reply
//! code of a refusal (RFC 1928 section 6).
//!
//! 1. Only "no authentication" is offered: every client that can reach the port may use it.
//! 2. BIND and UDP ASSOCIATE are refused with code 7: a download needs neither.
//! 3. Names are returned unresolved: they are resolved over the link that will be used.

use std::net::{Ipv4Addr, Ipv6Addr};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// The reply with this code.
pub fn reply(code: u8) -> [u8; 10] {
    // The bound address is reported as 0.0.0.0:0: clients do not use it, and it would reveal an address of this host.
    [5, code, 0, IPV4, 0, 0, 0, 0, 0, 0]
}

/// The requested host and port, or the reply code with which to refuse the request.
///
/// # Errors
/// The client has closed the connection, does not offer "no authentication", or does not speak SOCKS5.
pub async fn read_request<S>(client: &mut S) -> std::io::Result<Result<(String, u16), u8>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let [_, methods] = read_array(client).await?;
    let mut offered = vec![0; usize::from(methods)];
    client.read_exact(&mut offered).await?;
    if !offered.contains(&NO_AUTHENTICATION) {
        client.write_all(&[5, 0xff]).await?;
        return Err(std::io::ErrorKind::PermissionDenied.into());
    }
    client.write_all(&[5, NO_AUTHENTICATION]).await?;
    let [version, command, _, kind] = read_array(client).await?;
    if version != 5 {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    let host = match kind {
        IPV4 => Ipv4Addr::from(read_array::<4>(client).await?).to_string(),
        IPV6 => Ipv6Addr::from(read_array::<16>(client).await?).to_string(),
        DOMAIN_NAME => {
            let [len] = read_array(client).await?;
            let mut name = vec![0; usize::from(len)];
            client.read_exact(&mut name).await?;
            match parse_name(name) {
                Some(name) => name,
                None => return Ok(Err(GENERAL_FAILURE)),
            }
        }
        _ => return Ok(Err(ADDRESS_TYPE_NOT_SUPPORTED)),
    };
    let port = u16::from_be_bytes(read_array(client).await?);
    Ok(if command == CONNECT { Ok((host, port)) } else { Err(COMMAND_NOT_SUPPORTED) })
}

/// A name that may be requested: visible ASCII only (internationalized names arrive encoded).
fn parse_name(bytes: Vec<u8>) -> Option<String> {
    let is_valid = !bytes.is_empty() && bytes.iter().all(u8::is_ascii_graphic);
    if is_valid { String::from_utf8(bytes).ok() } else { None }
}

async fn read_array<const N: usize>(client: &mut (impl AsyncRead + Unpin)) -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    client.read_exact(&mut bytes).await?;
    Ok(bytes)
}

const NO_AUTHENTICATION: u8 = 0;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const DOMAIN_NAME: u8 = 3;
const IPV6: u8 = 4;
/// The connection is open.
pub const SUCCEEDED: u8 = 0;
/// Any other failure.
pub const GENERAL_FAILURE: u8 = 1;
/// An access rule refuses the request.
pub const NOT_ALLOWED: u8 = 2;
/// There is no route to the host.
pub const HOST_UNREACHABLE: u8 = 4;
const COMMAND_NOT_SUPPORTED: u8 = 7;
const ADDRESS_TYPE_NOT_SUPPORTED: u8 = 8;

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    type RequestResult = std::io::Result<Result<(String, u16), u8>>;

    /// The parsed request of a client that sends these bytes, and the bytes that were sent back.
    fn exchange(bytes: &[u8]) -> (RequestResult, Vec<u8>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            client.write_all(bytes).await.unwrap();
            client.shutdown().await.unwrap();
            let (mut server_side, _) = listener.accept().await.unwrap();
            let request = read_request(&mut server_side).await;
            drop(server_side);
            let mut replied = Vec::new();
            let _ = client.read_to_end(&mut replied).await;
            (request, replied)
        })
    }

    #[test]
    fn addresses_of_each_kind_are_parsed() {
        let name = [&[5, 1, 0, 5, 1, 0, 3, 6][..], b"h.test", &[1, 187]].concat();
        assert_eq!(exchange(&name).0.unwrap(), Ok(("h.test".to_owned(), 443)));
        assert_eq!(
            exchange(&[5, 2, 1, 0, 5, 1, 0, 1, 192, 0, 2, 1, 0, 80]).0.unwrap(),
            Ok(("192.0.2.1".into(), 80))
        );
        let ipv6_request = [&[5, 1, 0, 5, 1, 0, 4][..], &Ipv6Addr::LOCALHOST.octets(), &[0, 80]].concat();
        assert_eq!(exchange(&ipv6_request).0.unwrap(), Ok(("::1".to_owned(), 80)));
    }

    #[test]
    fn unsupported_requests_are_refused_with_their_code() {
        assert_eq!(exchange(&[5, 1, 0, 5, 3, 0, 1, 192, 0, 2, 1, 0, 80]).0.unwrap(), Err(COMMAND_NOT_SUPPORTED));
        assert_eq!(exchange(&[5, 1, 0, 5, 1, 0, 9]).0.unwrap(), Err(ADDRESS_TYPE_NOT_SUPPORTED));
        assert_eq!(exchange(&[5, 1, 0, 5, 1, 0, 3, 2, b'a', 0, 0, 80]).0.unwrap(), Err(GENERAL_FAILURE));
        let (request, replied) = exchange(&[5, 1, 2]);
        assert!(request.is_err());
        assert_eq!(replied, [5, 0xff]);
        for len in 0..10 {
            assert!(exchange(&[5, 1, 0, 5, 1, 0, 1, 1, 1, 1, 1, 0, 80][..len]).0.is_err(), "{len} bytes");
        }
    }
}
