//! DNS messages: builds the query for a host's addresses and reads the response to it (RFC 1035 section 4, RFC 6891).
//!
//! Names, headers and questions are encoded and decoded by hickory-proto. A response is decoded section by section, not as
//! hickory's `Message`: that reserves memory for as many questions as the header claims, decodes the data of every record
//! type, and rejects the whole message for a fault in a record that is of no interest here.
//!
//! 1. A response must repeat the id, name, type and class of the query (RFC 5452 section 3). Anything else is ignored and not
//!    an error, since every host can send a datagram.
//! 2. CNAME records are followed within the response only, over at most [`MAX_NAMES`] names.
//! 3. hickory-proto accepts compression pointers only to before the name that contains them, so no loop can be encoded.
//!    Records other than addresses and aliases are not kept.

use std::net::IpAddr;
use std::time::Duration;

use hickory_proto::op::{Edns, Header, HeaderCounts, MessageType, Metadata, OpCode, Query};
use hickory_proto::rr::{DNSClass, Name, RecordType};
use hickory_proto::serialize::binary::{BinDecodable as _, BinDecoder, BinEncodable as _, BinEncoder};

/// The address family of a query.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Family {
    /// A records.
    V4,
    /// AAAA records.
    V6,
}

impl Family {
    fn record_type(self) -> RecordType {
        match self {
            Self::V4 => RecordType::A,
            Self::V6 => RecordType::AAAA,
        }
    }

    /// Parses the data of an address record; `None` if its length is wrong.
    fn address(self, data: &[u8]) -> Option<IpAddr> {
        match self {
            Self::V4 => <[u8; 4]>::try_from(data).ok().map(IpAddr::from),
            Self::V6 => <[u8; 16]>::try_from(data).ok().map(IpAddr::from),
        }
    }
}

/// The meaning of a response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum DnsResponse {
    /// The addresses; empty: the name exists without addresses of this family.
    Addresses {
        addresses: Vec<IpAddr>,
        /// How long the addresses may be cached.
        ttl: Duration,
    },
    /// The name does not exist.
    NoSuchName,
    /// The response does not fit into a datagram; the query must be repeated over TCP.
    Truncated,
    /// The server cannot or will not answer; the response code.
    Failure(u8),
}

/// Response codes (RFC 1035 section 4.1.1).
pub(super) const FORMAT_ERROR: u8 = 1;
pub(super) const NOT_IMPLEMENTED: u8 = 4;
const NO_SUCH_NAME: u8 = 3;

/// The largest datagram that may come back: below what any path fragments (DNS Flag Day 2020).
pub(super) const MAX_DATAGRAM_LEN: u16 = 1232;

/// Our choice: the name and more aliases than any CDN uses for one.
const MAX_NAMES: usize = 16;

/// Encodes a query; `None` if `name` is not a valid host name.
pub(super) fn encode_query(id: u16, name: &str, family: Family, edns: bool) -> Option<Vec<u8>> {
    let mut metadata = Metadata::new(id, MessageType::Query, OpCode::Query);
    metadata.recursion_desired = true;
    let counts = HeaderCounts { queries: 1, additionals: edns.into(), ..HeaderCounts::default() };
    let query = Query::query(host_name(name)?, family.record_type());
    let mut bytes = Vec::new();
    let mut encoder = BinEncoder::new(&mut bytes);
    let header = Header { metadata, counts }.emit(&mut encoder);
    header.and_then(|()| query.emit(&mut encoder)).ok()?;
    if edns {
        let mut edns = Edns::new();
        edns.set_max_payload(MAX_DATAGRAM_LEN);
        edns.emit(&mut encoder).ok()?;
    }
    Some(bytes)
}

/// The absolute name in lower case. Names that are not host names are rejected; hickory-proto would escape them.
fn host_name(name: &str) -> Option<Name> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_host_name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if name.is_empty() || !name.bytes().all(is_host_name) {
        return None;
    }
    let lower = name.to_ascii_lowercase();
    // `Name::from_labels` is equivalent and prints its errors: that alone adds 150 KB to the program.
    lower.split('.').try_fold(Name::root(), |name, label| name.append_label(label.as_bytes()).ok())
}

/// Decodes a response to the given query; `None` if the bytes are not a response to it.
pub(super) fn decode_response(bytes: &[u8], id: u16, name: &str, family: Family) -> Option<DnsResponse> {
    let mut decoder = BinDecoder::new(bytes);
    let header = Header::read(&mut decoder).ok()?;
    if (header.id, header.message_type, header.op_code) != (id, MessageType::Response, OpCode::Query) {
        return None;
    }
    let code = header.response_code.low();
    // A server that cannot parse the query may omit it from the response.
    if header.counts.queries == 0 && code != 0 && code != NO_SUCH_NAME {
        return Some(DnsResponse::Failure(code));
    }
    let query = Query::read(&mut decoder).ok()?;
    let query_name = host_name(name)?;
    if header.counts.queries != 1 || query != Query::query(query_name.clone(), family.record_type()) {
        return None;
    }
    match code {
        0 if header.truncation => Some(DnsResponse::Truncated),
        0 => collect_addresses(&mut decoder, header.counts.answers, query_name, family),
        NO_SUCH_NAME => Some(DnsResponse::NoSuchName),
        code => Some(DnsResponse::Failure(code)),
    }
}

/// The addresses of the name in the answer section, direct or through aliases.
fn collect_addresses(
    decoder: &mut BinDecoder<'_>,
    count: u16,
    mut owner: Name,
    family: Family,
) -> Option<DnsResponse> {
    let mut records = Vec::new();
    for _ in 0..count {
        records.extend(
            decode_record(decoder)?.filter(|r| [family.record_type(), RecordType::CNAME].contains(&r.record_type)),
        );
    }
    let mut ttl = u32::MAX;
    for _ in 0..MAX_NAMES {
        let name = &owner;
        let of_owner =
            |kind| records.iter().filter(move |r: &&Record<'_>| r.record_type == kind && r.owner == *name);
        let found: Vec<&Record<'_>> = of_owner(family.record_type()).collect();
        if !found.is_empty() {
            ttl = found.iter().map(|r| r.ttl).fold(ttl, u32::min);
            let addresses = found.iter().filter_map(|record| family.address(record.data)).collect();
            return Some(DnsResponse::Addresses { addresses, ttl: Duration::from_secs(ttl.into()) });
        }
        let Some(alias) = of_owner(RecordType::CNAME).next() else { break };
        ttl = ttl.min(alias.ttl);
        owner = Name::read(&mut decoder.clone(alias.data_offset)).ok()?;
    }
    // RFC 2308 section 5 would take the time to live from the SOA record. Names without addresses are not cached at
    // all.
    Some(DnsResponse::Addresses { addresses: Vec::new(), ttl: Duration::ZERO })
}

/// A resource record of the answer section.
struct Record<'a> {
    owner: Name,
    record_type: RecordType,
    /// Time to live in seconds.
    ttl: u32,
    data: &'a [u8],
    /// Offset of the data in the message: names in the data may be compressed.
    data_offset: u16,
}

/// Decodes the next record. `None`: it is malformed; `Some(None)`: it is of another class.
fn decode_record<'a>(decoder: &mut BinDecoder<'a>) -> Option<Option<Record<'a>>> {
    let owner = Name::read(decoder).ok()?;
    let kind = RecordType::from(decoder.read_u16().ok()?.unverified());
    let class = DNSClass::from(decoder.read_u16().ok()?.unverified());
    let ttl = decoder.read_u32().ok()?.unverified();
    let length = decoder.read_u16().ok()?.unverified();
    let at = u16::try_from(decoder.index()).ok()?;
    let data = decoder.read_slice(length.into()).ok()?.unverified();
    // RFC 2181 section 8: a time to live with the top bit set counts as zero.
    let ttl = if ttl > i32::MAX as u32 { 0 } else { ttl };
    Some((class == DNSClass::IN).then_some(Record { owner, record_type: kind, ttl, data, data_offset: at }))
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEADER: usize = 12;
    const CNAME: u16 = 5;

    /// A response to the query in these bytes, with records of `(owner, type, data)`; an empty owner is the
    /// compressed name of the query.
    pub(in crate::dns) fn response(question: &[u8], flags: u16, records: &[(&str, u16, Vec<u8>)]) -> Vec<u8> {
        let mut decoder = BinDecoder::new(question);
        Header::read(&mut decoder).unwrap();
        Query::read(&mut decoder).unwrap();
        let mut bytes = question[..2].to_vec();
        for field in [0x8180 | flags, 1, records.len() as u16, 0, 0] {
            bytes.extend(field.to_be_bytes());
        }
        bytes.extend(&question[HEADER..decoder.index()]);
        for (owner, kind, data) in records {
            bytes.extend(if owner.is_empty() { vec![0xc0, 12] } else { encoded(owner) });
            bytes.extend(kind.to_be_bytes());
            bytes.extend(1_u16.to_be_bytes());
            bytes.extend(60_u32.to_be_bytes());
            bytes.extend((data.len() as u16).to_be_bytes());
            bytes.extend(data);
        }
        bytes
    }

    /// The uncompressed name in wire format.
    fn encoded(name: &str) -> Vec<u8> {
        host_name(name).unwrap().to_bytes().unwrap()
    }

    fn query_for(name: &str) -> Vec<u8> {
        encode_query(7, name, Family::V4, true).unwrap()
    }

    fn found(texts: &[&str]) -> Option<DnsResponse> {
        let addresses = texts.iter().map(|text| text.parse().unwrap()).collect();
        Some(DnsResponse::Addresses { addresses, ttl: Duration::from_secs(60) })
    }

    #[test]
    fn a_query_has_the_format_of_rfc_1035() {
        let plain = encode_query(0x1234, "Ex.org", Family::V6, false).unwrap();
        assert_eq!(plain, b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x02ex\x03org\x00\x00\x1c\x00\x01");
        let edns = encode_query(0x1234, "ex.org", Family::V6, true).unwrap();
        assert_eq!(&edns[plain.len()..], b"\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00");
        let long = [&"a".repeat(63)[..]; 4].join(".");
        for bad in ["", ".", "a..b", &"a".repeat(64), &long, "a b.org", "ex.org/x", "\u{e4}.org"] {
            assert_eq!(encode_query(1, bad, Family::V4, true), None, "{bad}");
        }
    }

    #[test]
    fn addresses_of_aliases_are_found_in_any_order() {
        let question = query_for("www.Example.org");
        let direct = response(&question, 0, &[("", 1, vec![192, 0, 2, 1]), ("", 1, vec![192, 0, 2, 2])]);
        assert_eq!(decode_response(&direct, 7, "www.example.ORG.", Family::V4), found(&["192.0.2.1", "192.0.2.2"]));
        let alias = response(
            &question,
            0,
            &[
                ("edge.cdn.net", 1, vec![192, 0, 2, 9]),
                ("other.net", 1, vec![192, 0, 2, 66]),
                ("cdn.net", CNAME, encoded("edge.cdn.net")),
                ("", CNAME, encoded("cdn.net")),
            ],
        );
        assert_eq!(decode_response(&alias, 7, "www.example.org", Family::V4), found(&["192.0.2.9"]));
    }

    #[test]
    fn an_address_record_of_the_wrong_length_is_ignored() {
        let question = query_for("example.org");
        let mixed = response(&question, 0, &[("", 1, vec![0; 16]), ("", 1, vec![192, 0, 2, 1])]);
        assert_eq!(decode_response(&mixed, 7, "example.org", Family::V4), found(&["192.0.2.1"]));
    }

    #[test]
    fn a_response_to_another_query_is_ignored() {
        let good = response(&query_for("example.org"), 0, &[("", 1, vec![192, 0, 2, 1])]);
        assert!(decode_response(&good, 7, "example.org", Family::V4).is_some());
        assert_eq!(decode_response(&good, 8, "example.org", Family::V4), None, "number");
        assert_eq!(decode_response(&good, 7, "example.com", Family::V4), None, "name");
        assert_eq!(decode_response(&good, 7, "example.org", Family::V6), None, "type");
        assert_eq!(decode_response(&query_for("example.org"), 7, "example.org", Family::V4), None, "a query");
        for cut in 0..good.len() {
            assert_eq!(decode_response(&good[..cut], 7, "example.org", Family::V4), None, "cut at {cut}");
        }
    }

    #[test]
    fn each_response_code_has_its_meaning() {
        let question = query_for("example.org");
        let decode_flags = |flags| decode_response(&response(&question, flags, &[]), 7, "example.org", Family::V4);
        assert_eq!(decode_flags(3), Some(DnsResponse::NoSuchName));
        assert_eq!(decode_flags(2), Some(DnsResponse::Failure(2)));
        assert_eq!(decode_flags(0x0200), Some(DnsResponse::Truncated));
        assert_eq!(decode_flags(0), Some(DnsResponse::Addresses { addresses: Vec::new(), ttl: Duration::ZERO }));
        let bare = [&[0, 7, 0x81, 0x81][..], &[0; 8]].concat();
        assert_eq!(decode_response(&bare, 7, "example.org", Family::V4), Some(DnsResponse::Failure(FORMAT_ERROR)));
    }

    #[test]
    fn alias_loops_terminate() {
        let question = query_for("a.org");
        let alias_loop =
            response(&question, 0, &[("", CNAME, encoded("b.org")), ("b.org", CNAME, encoded("a.org"))]);
        assert_eq!(
            decode_response(&alias_loop, 7, "a.org", Family::V4),
            Some(DnsResponse::Addresses { addresses: Vec::new(), ttl: Duration::ZERO })
        );
    }

    #[test]
    fn pointers_that_do_not_point_backwards_are_rejected() {
        let question = query_for("a.org");
        let end = response(&question, 0, &[]).len() as u8;
        let with_owner = |owner: &[u8]| {
            let mut bytes = response(&question, 0, &[]);
            bytes[7] = 1;
            bytes.extend(owner);
            bytes.extend([0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 1]);
            decode_response(&bytes, 7, "a.org", Family::V4)
        };
        assert_eq!(with_owner(&[0xc0, HEADER as u8]), found(&["192.0.2.1"]));
        for at in [end, end + 1, end + 2, 200] {
            assert_eq!(with_owner(&[0xc0, at]), None, "{at}");
            assert_eq!(with_owner(&[1, b'a', 0xc0, at]), None, "a label, then {at}");
        }
        // A pointer to the header, where the bytes look like a label that extends into the pointer itself.
        let mut bytes = response(&query_for("a.org"), 0, &[("", 1, vec![192, 0, 2, 1])]);
        bytes[HEADER..HEADER + 2].copy_from_slice(&[0xc0, HEADER as u8]);
        assert_eq!(decode_response(&bytes, 7, "a.org", Family::V4), None);
    }

    #[test]
    fn record_counts_that_exceed_the_message_are_rejected() {
        let good = response(&query_for("a.org"), 0, &[("", 1, vec![192, 0, 2, 1])]);
        for count in [4, 6] {
            let mut bytes = good.clone();
            bytes[count..count + 2].copy_from_slice(&[0xff; 2]);
            assert_eq!(decode_response(&bytes, 7, "a.org", Family::V4), None);
        }
        // Records of the other sections are not read.
        let mut bytes = good;
        bytes[8..12].copy_from_slice(&[0xff; 4]);
        assert_eq!(decode_response(&bytes, 7, "a.org", Family::V4), found(&["192.0.2.1"]));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_make_the_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            decode_response(&bytes, 7, "example.org", Family::V4);
        }

        #[test]
        fn damaged_responses_neither_panic_nor_hang(
            damage in proptest::collection::vec((0..200_usize, any::<u8>()), 0..8),
            pointers in proptest::collection::vec(0..200_usize, 0..4),
        ) {
            let alias = vec![0xc0, 12];
            let mut bytes = response(&query_for("www.example.org"), 0, &[
                ("", CNAME, alias.clone()), ("b.example.org", CNAME, alias), ("", 1, vec![192, 0, 2, 1]),
            ]);
            for at in pointers {
                let at = at % (bytes.len() - 1);
                bytes[at] = 0xc0;
            }
            for (at, byte) in damage {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            decode_response(&bytes, 7, "www.example.org", Family::V4);
        }

        #[test]
        fn encoded_queries_are_decoded_to_the_same_name(name in "[a-z0-9]{1,20}(\\.[a-z0-9-]{1,20}){0,5}", id in any::<u16>()) {
            let bytes = encode_query(id, &name, Family::V6, true).unwrap();
            let read = Query::read(&mut BinDecoder::new(&bytes).clone(HEADER as u16)).unwrap();
            prop_assert_eq!(Some(read.name), host_name(&name));
        }
    }
}
