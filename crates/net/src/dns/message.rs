//! Messages of DNS: one question out, one answer in (RFC 1035 §4, RFC 6891).
//!
//! In: a name and a family of addresses; later the bytes of an answer. Out: the bytes of the question; later a
//! [`Reply`], or nothing when the bytes do not answer that question.
//!
//! 1. An answer must repeat number, name, type and class of the question (RFC 5452 §3); anything else is ignored, not
//!    an error, since anybody can send a datagram.
//! 2. Names are followed through CNAME records within the answer only, sixteen steps at most.
//! 3. A compression pointer must point before the place where the name began; so no loop can be written.

use std::net::IpAddr;
use std::time::Duration;

/// Which addresses are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Family {
    /// A records.
    V4,
    /// AAAA records.
    V6,
}

impl Family {
    fn record(self) -> u16 {
        match self {
            Self::V4 => 1,
            Self::V6 => 28,
        }
    }

    /// The address in a record of this family; none if it has another length.
    fn address(self, data: &[u8]) -> Option<IpAddr> {
        match self {
            Self::V4 => <[u8; 4]>::try_from(data).ok().map(IpAddr::from),
            Self::V6 => <[u8; 16]>::try_from(data).ok().map(IpAddr::from),
        }
    }
}

/// What a server says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Reply {
    /// The addresses; none: the name exists without addresses of this family.
    Addresses {
        addresses: Vec<IpAddr>,
        /// How long that is true.
        ttl: Duration,
    },
    /// There is no such name.
    NoSuchName,
    /// There is more than a datagram holds.
    Truncated,
    /// The server cannot or will not answer: the response code.
    Failure(u8),
}

/// Response codes (RFC 1035 §4.1.1).
pub(super) const FORMAT_ERROR: u8 = 1;
pub(super) const NOT_IMPLEMENTED: u8 = 4;
const NO_SUCH_NAME: u8 = 3;

const HEADER: usize = 12;
const INTERNET: u16 = 1;
const CNAME: u16 = 5;

/// The largest datagram that may come back: below what any path fragments (DNS Flag Day 2020).
pub(super) const DATAGRAM: u16 = 1232;

/// The question, or nothing when the name cannot be one.
pub(super) fn question(id: u16, name: &str, family: Family, edns: bool) -> Option<Vec<u8>> {
    const OPT: u16 = 41;
    const RECURSION_DESIRED: u16 = 0x0100;
    let mut bytes = Vec::with_capacity(HEADER + name.len() + 17);
    for field in [id, RECURSION_DESIRED, 1, 0, 0, u16::from(edns)] {
        bytes.extend(field.to_be_bytes());
    }
    bytes.extend(labels(name)?);
    bytes.extend(family.record().to_be_bytes());
    bytes.extend(INTERNET.to_be_bytes());
    if edns {
        bytes.push(0);
        for field in [OPT, DATAGRAM, 0, 0, 0] {
            bytes.extend(field.to_be_bytes());
        }
    }
    Some(bytes)
}

/// The name in lower case as labels behind their lengths, the root's zero at the end.
fn labels(name: &str) -> Option<Vec<u8>> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let mut bytes = Vec::with_capacity(name.len() + 2);
    for label in name.split('.') {
        let length = u8::try_from(label.len()).ok().filter(|length| (1..=63).contains(length))?;
        if !label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_') {
            return None;
        }
        bytes.push(length);
        bytes.extend(label.bytes().map(|b| b.to_ascii_lowercase()));
    }
    bytes.push(0);
    (bytes.len() <= 255).then_some(bytes)
}

/// What these bytes say about that question; nothing when they are no answer to it.
pub(super) fn reply(bytes: &[u8], id: u16, name: &str, family: Family) -> Option<Reply> {
    const QR_AND_OPCODE: u16 = 0xf800;
    const IS_ANSWER: u16 = 0x8000;
    const TRUNCATED: u16 = 0x0200;
    let flags = u16_at(bytes, 2)?;
    if u16_at(bytes, 0)? != id || flags & QR_AND_OPCODE != IS_ANSWER {
        return None;
    }
    let code = (flags & 0xf) as u8;
    let questions = u16_at(bytes, 4)?;
    // A server that cannot read the question need not repeat it.
    if questions == 0 && code != 0 && code != NO_SUCH_NAME {
        return Some(Reply::Failure(code));
    }
    let (asked, at) = read_name(bytes, HEADER)?;
    let wanted = labels(name)?;
    if questions != 1
        || asked != wanted
        || u16_at(bytes, at)? != family.record()
        || u16_at(bytes, at + 2)? != INTERNET
    {
        return None;
    }
    match code {
        0 if flags & TRUNCATED != 0 => Some(Reply::Truncated),
        0 => addresses(bytes, at + 4, &wanted, family),
        NO_SUCH_NAME => Some(Reply::NoSuchName),
        code => Some(Reply::Failure(code)),
    }
}

/// The addresses that the answer section gives for the name.
fn addresses(bytes: &[u8], at: usize, name: &[u8], family: Family) -> Option<Reply> {
    let records = records(bytes, at)?;
    let (mut owner, mut ttl) = (name.to_vec(), u32::MAX);
    for _ in 0..16 {
        let of_owner = |kind: u16| {
            let owner = owner.clone();
            records.iter().filter(move |r| r.owner == owner && r.kind == kind)
        };
        let found: Vec<&Record<'_>> = of_owner(family.record()).collect();
        if !found.is_empty() {
            ttl = found.iter().map(|r| r.ttl).chain([ttl]).min()?;
            let addresses = found.iter().filter_map(|record| family.address(record.data)).collect();
            return Some(Reply::Addresses { addresses, ttl: Duration::from_secs(ttl.into()) });
        }
        let Some(alias) = of_owner(CNAME).next() else { break };
        ttl = ttl.min(alias.ttl);
        owner = read_name(bytes, alias.at)?.0;
    }
    // RFC 2308 §5 would take the time from the SOA; what is not there is not kept at all.
    Some(Reply::Addresses { addresses: Vec::new(), ttl: Duration::ZERO })
}

/// A record of the answer section.
struct Record<'a> {
    owner: Vec<u8>,
    kind: u16,
    ttl: u32,
    data: &'a [u8],
    /// Where the data begins in the message.
    at: usize,
}

fn records(bytes: &[u8], mut at: usize) -> Option<Vec<Record<'_>>> {
    let count = u16_at(bytes, 6)?;
    let mut records = Vec::new();
    for _ in 0..count {
        let (owner, fixed) = read_name(bytes, at)?;
        let (kind, class) = (u16_at(bytes, fixed)?, u16_at(bytes, fixed + 2)?);
        let ttl = u32::from(u16_at(bytes, fixed + 4)?) << 16 | u32::from(u16_at(bytes, fixed + 6)?);
        let start = fixed + 10;
        at = start + usize::from(u16_at(bytes, fixed + 8)?);
        let data = bytes.get(start..at)?;
        if class == INTERNET {
            // RFC 2181 §8: the top bit of a time to live means zero.
            let ttl = if ttl > i32::MAX as u32 { 0 } else { ttl };
            records.push(Record { owner, kind, ttl, data, at: start });
        }
    }
    Some(records)
}

/// The name at this place, in lower case and without compression, and where the next field begins.
fn read_name(bytes: &[u8], start: usize) -> Option<(Vec<u8>, usize)> {
    let (mut name, mut at, mut begin, mut behind) = (Vec::new(), start, start, None);
    loop {
        let length = usize::from(*bytes.get(at)?);
        match length {
            0 => {
                name.push(0);
                return Some((name, behind.unwrap_or(at + 1)));
            }
            1..=63 => {
                name.push(length as u8);
                name.extend(bytes.get(at + 1..at + 1 + length)?.iter().map(u8::to_ascii_lowercase));
                at += 1 + length;
            }
            192.. => {
                let target = usize::from(u16_at(bytes, at)? & 0x3fff);
                behind.get_or_insert(at + 2);
                if target >= begin {
                    return None;
                }
                (at, begin) = (target, target);
            }
            _ => return None,
        }
        if name.len() > 254 {
            return None;
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An answer to the question in these bytes, with records of `(owner, type, data)`; an empty owner is the
    /// question's name, compressed.
    pub(in crate::dns) fn answer(question: &[u8], flags: u16, records: &[(&str, u16, Vec<u8>)]) -> Vec<u8> {
        let (_, end) = read_name(question, HEADER).unwrap();
        let mut bytes = question[..2].to_vec();
        for field in [0x8180 | flags, 1, records.len() as u16, 0, 0] {
            bytes.extend(field.to_be_bytes());
        }
        bytes.extend(&question[HEADER..end + 4]);
        for (owner, kind, data) in records {
            bytes.extend(if owner.is_empty() { vec![0xc0, 12] } else { labels(owner).unwrap() });
            bytes.extend(kind.to_be_bytes());
            bytes.extend(INTERNET.to_be_bytes());
            bytes.extend(60_u32.to_be_bytes());
            bytes.extend((data.len() as u16).to_be_bytes());
            bytes.extend(data);
        }
        bytes
    }

    fn ask(name: &str) -> Vec<u8> {
        question(7, name, Family::V4, true).unwrap()
    }

    fn found(texts: &[&str]) -> Option<Reply> {
        let addresses = texts.iter().map(|text| text.parse().unwrap()).collect();
        Some(Reply::Addresses { addresses, ttl: Duration::from_secs(60) })
    }

    #[test]
    fn a_question_has_the_form_of_rfc_1035() {
        let plain = question(0x1234, "Ex.org", Family::V6, false).unwrap();
        assert_eq!(plain, b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x02ex\x03org\x00\x00\x1c\x00\x01");
        let edns = question(0x1234, "ex.org", Family::V6, true).unwrap();
        assert_eq!(&edns[plain.len()..], b"\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00");
        let long = [&"a".repeat(63)[..]; 4].join(".");
        for bad in ["", ".", "a..b", &"a".repeat(64), &long, "a b.org", "ex.org/x", "\u{e4}.org"] {
            assert_eq!(question(1, bad, Family::V4, true), None, "{bad}");
        }
    }

    #[test]
    fn addresses_are_found_behind_aliases_in_any_order() {
        let question = ask("www.Example.org");
        let direct = answer(&question, 0, &[("", 1, vec![192, 0, 2, 1]), ("", 1, vec![192, 0, 2, 2])]);
        assert_eq!(reply(&direct, 7, "www.example.ORG.", Family::V4), found(&["192.0.2.1", "192.0.2.2"]));
        let alias = answer(
            &question,
            0,
            &[
                ("edge.cdn.net", 1, vec![192, 0, 2, 9]),
                ("other.net", 1, vec![192, 0, 2, 66]),
                ("cdn.net", CNAME, labels("edge.cdn.net").unwrap()),
                ("", CNAME, labels("cdn.net").unwrap()),
            ],
        );
        assert_eq!(reply(&alias, 7, "www.example.org", Family::V4), found(&["192.0.2.9"]));
    }

    #[test]
    fn a_record_with_an_address_of_the_other_family_is_none() {
        let question = ask("example.org");
        let mixed = answer(&question, 0, &[("", 1, vec![0; 16]), ("", 1, vec![192, 0, 2, 1])]);
        assert_eq!(reply(&mixed, 7, "example.org", Family::V4), found(&["192.0.2.1"]));
    }

    #[test]
    fn what_answers_another_question_is_ignored() {
        let good = answer(&ask("example.org"), 0, &[("", 1, vec![192, 0, 2, 1])]);
        assert!(reply(&good, 7, "example.org", Family::V4).is_some());
        assert_eq!(reply(&good, 8, "example.org", Family::V4), None, "number");
        assert_eq!(reply(&good, 7, "example.com", Family::V4), None, "name");
        assert_eq!(reply(&good, 7, "example.org", Family::V6), None, "type");
        assert_eq!(reply(&ask("example.org"), 7, "example.org", Family::V4), None, "a question");
        for cut in 0..good.len() {
            assert_eq!(reply(&good[..cut], 7, "example.org", Family::V4), None, "cut at {cut}");
        }
    }

    #[test]
    fn each_response_code_has_its_meaning() {
        let question = ask("example.org");
        let says = |flags| reply(&answer(&question, flags, &[]), 7, "example.org", Family::V4);
        assert_eq!(says(3), Some(Reply::NoSuchName));
        assert_eq!(says(2), Some(Reply::Failure(2)));
        assert_eq!(says(0x0200), Some(Reply::Truncated));
        assert_eq!(says(0), Some(Reply::Addresses { addresses: Vec::new(), ttl: Duration::ZERO }));
        let bare = [&[0, 7, 0x81, 0x81][..], &[0; 8]].concat();
        assert_eq!(reply(&bare, 7, "example.org", Family::V4), Some(Reply::Failure(FORMAT_ERROR)));
    }

    #[test]
    fn loops_of_names_end() {
        let question = ask("a.org");
        let circle = answer(
            &question,
            0,
            &[("", CNAME, labels("b.org").unwrap()), ("b.org", CNAME, labels("a.org").unwrap())],
        );
        assert_eq!(
            reply(&circle, 7, "a.org", Family::V4),
            Some(Reply::Addresses { addresses: Vec::new(), ttl: Duration::ZERO })
        );
        for target in [0_u8, 11, 12, 13, 200] {
            let mut looped = vec![0; HEADER];
            looped.extend([0xc0, target, 0, 1, 0, 1]);
            assert!(read_name(&looped, HEADER).is_none_or(|(name, _)| name == [0]), "{target}");
        }
        let mut forward = vec![1, b'a', 0xc0, 0];
        assert_eq!(read_name(&forward, 0), None, "onto its own beginning");
        forward.extend([1, b'b', 0xc0, 4]);
        assert_eq!(read_name(&forward, 4), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600), at in 0..700_usize) {
            read_name(&bytes, at);
            reply(&bytes, 7, "example.org", Family::V4);
        }

        #[test]
        fn damage_never_panics_and_never_hangs(
            damage in proptest::collection::vec((0..200_usize, any::<u8>()), 0..8),
            pointers in proptest::collection::vec(0..200_usize, 0..4),
        ) {
            let alias = vec![0xc0, 12];
            let mut bytes = answer(&ask("www.example.org"), 0, &[
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
            reply(&bytes, 7, "www.example.org", Family::V4);
        }

        #[test]
        fn every_question_reads_back(name in "[a-z0-9]{1,20}(\\.[a-z0-9-]{1,20}){0,5}", id in any::<u16>()) {
            let bytes = question(id, &name, Family::V6, true).unwrap();
            let (read, _) = read_name(&bytes, HEADER).unwrap();
            prop_assert_eq!(Some(read), labels(&name));
        }
    }
}
