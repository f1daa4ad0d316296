//! Inspection of TCP packets that pass the emulator: length of the payload, and requests to change a subflow's
//! priority (MP_PRIO, RFC 8684 section 3.3.8).
//!
//! An MP_PRIO option is sent on one ACK that is not retransmitted. So a test needs to drop exactly that packet, and
//! to know when the next one arrives.

/// The MP_PRIO request in an IP packet: `Some(true)` makes the subflow a backup, `Some(false)` a regular one;
/// `None` if there is no such option.
pub(super) fn mp_prio_backup(packet: &[u8]) -> Option<bool> {
    let (segment, header) = tcp_segment(packet)?;
    let mut options = segment.get(20..header)?;
    loop {
        match options {
            [OPTION_END, ..] | [] => return None,
            [OPTION_NOP, remaining @ ..] => options = remaining,
            [OPTION_MPTCP, 3 | 4, subtype_and_flags, ..] if subtype_and_flags >> 4 == SUBTYPE_MP_PRIO => {
                return Some(subtype_and_flags & 1 == 1);
            }
            [_, length, ..] if *length >= 2 => options = options.get(usize::from(*length)..)?,
            _ => return None,
        }
    }
}

/// Bytes of TCP payload in an IP packet; 0 if it is not TCP.
pub(super) fn payload_len(packet: &[u8]) -> usize {
    tcp_segment(packet).map_or(0, |(segment, header)| segment.len().saturating_sub(header))
}

/// The TCP segment of an IP packet, and the length of the TCP header.
fn tcp_segment(packet: &[u8]) -> Option<(&[u8], usize)> {
    let header = match packet.first()? >> 4 {
        4 if *packet.get(9)? == PROTOCOL_TCP => usize::from(packet.first()? & 15) * 4,
        6 if *packet.get(6)? == PROTOCOL_TCP => 40,
        _ => return None,
    };
    let segment = packet.get(header..)?;
    Some((segment, usize::from(segment.get(12)? >> 4) * 4))
}

/// IANA numbers of the protocol and of the TCP option kinds, and the MPTCP option subtype.
const PROTOCOL_TCP: u8 = 6;
const OPTION_END: u8 = 0;
const OPTION_NOP: u8 = 1;
const OPTION_MPTCP: u8 = 30;
const SUBTYPE_MP_PRIO: u8 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    /// An ACK with these TCP options.
    fn packet(options: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, PROTOCOL_TCP, 0, 0, 10, 2, 0, 2, 10, 99, 0, 1];
        packet.extend([0; 12]);
        packet.push((((20 + options.len().next_multiple_of(4)) / 4) << 4) as u8);
        packet.extend([0x10, 0, 0, 0, 0, 0, 0]);
        packet.extend(options);
        packet.resize(packet.len().next_multiple_of(4), 0);
        packet
    }

    #[test]
    fn mp_prio_is_found_behind_other_options() {
        let timestamp_option = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
        let with = |option: &[u8]| mp_prio_backup(&packet(&[&timestamp_option[..], option].concat()));
        assert_eq!(with(&[30, 3, 0x51]), Some(true));
        assert_eq!(with(&[30, 3, 0x50]), Some(false));
        assert_eq!(with(&[30, 4, 0x51, 2]), Some(true));
        // A Data Sequence Signal, then MP_PRIO.
        assert_eq!(with(&[30, 8, 0x20, 1, 0, 0, 0, 9, 30, 3, 0x51]), Some(true));
        assert_eq!(with(&[30, 8, 0x20, 1, 0, 0, 0, 9]), None);
    }

    #[test]
    fn payload_begins_after_the_tcp_header() {
        let mut full_packet = packet(&[30, 3, 0x51, 0]);
        assert_eq!(payload_len(&full_packet), 0);
        full_packet.extend([7; 100]);
        assert_eq!(payload_len(&full_packet), 100);
        assert_eq!(payload_len(&[0x45, 0]), 0);
    }

    #[test]
    fn truncated_packets_and_other_protocols_have_no_mp_prio() {
        let full_packet = packet(&[30, 3, 0x51, 0]);
        assert_eq!(mp_prio_backup(&full_packet), Some(true));
        for length in 0..43 {
            assert_eq!(mp_prio_backup(&full_packet[..length]), None, "{length}");
        }
        let mut udp = full_packet.clone();
        udp[9] = 17;
        assert_eq!(mp_prio_backup(&udp), None);
        assert_eq!(mp_prio_backup(&packet(&[30, 0, 0x51, 0])), None);
    }
}
