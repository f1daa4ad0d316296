//! What is changed in a kernel's packets, and what of them stays.

use alloc::vec::Vec;

use super::*;
use crate::wire::packet::Rewrite;

/// The packet after a change, its checksum compared with one that is made anew.
fn changed(bytes: &[u8], how: impl FnOnce(&mut Rewrite<'_>)) -> Vec<u8> {
    let mut new = bytes.to_vec();
    how(&mut Rewrite::of(&mut new).unwrap());
    assert_eq!((packet(&new).checksum(), packet(&new).is_header_right()), (Checksum::Right, true));
    assert_eq!(checksum_by_hand(&new), checksum_field(&new));
    assert_eq!((segment(&new).payload(), new.len()), (segment(bytes).payload(), bytes.len()));
    new
}

#[test]
fn an_acknowledgement_and_a_window_move() {
    for bytes in FILLED {
        let new = changed(bytes, |rewrite| {
            assert_eq!(rewrite.set_ack(Seq::new(0xffff_0001)), segment(bytes).ack().is_some());
            rewrite.set_window(0xfffe);
        });
        assert_eq!(segment(&new).ack(), segment(bytes).ack().map(|_| Seq::new(0xffff_0001)));
        assert_eq!((segment(&new).window(), segment(&new).seq()), (0xfffe, segment(bytes).seq()));
        assert!(segment(&new).options().eq(segment(bytes).options()));
    }
}

#[test]
fn another_echo_leaves_the_senders_own_clock_alone() {
    for bytes in FILLED {
        let former = segment(bytes).timestamps();
        let new = changed(bytes, |rewrite| assert_eq!(rewrite.set_echo(Stamp::new(0xabcd_ef01)), former.is_some()));
        let stamps = segment(&new).timestamps();
        assert_eq!(stamps.map(|stamps| stamps.value), former.map(|stamps| stamps.value));
        assert_eq!(stamps.map(|stamps| stamps.echo), former.map(|_| Stamp::new(0xabcd_ef01)));
    }
}

#[test]
fn an_option_at_an_odd_place_is_changed_as_well() {
    // Timestamps and SACK, each behind one no-operation: everything at odd places.
    let mut bytes = V4_SACK4.to_vec();
    bytes[40] = 1;
    bytes[41..51].copy_from_slice(&[8, 10, 1, 2, 3, 4, 5, 6, 7, 8]);
    bytes[51..61].copy_from_slice(&[5, 10, 0, 0, 0, 9, 0, 0, 0, 12]);
    bytes[61..].fill(1);
    fill(&mut bytes);
    let new = changed(&bytes, |rewrite| {
        assert!(rewrite.set_echo(Stamp::new(0x0a0b_0c0d)));
        assert_eq!(rewrite.map_sacks(|block| Some(Span::new(block.start.plus(1), block.end.plus(300)))), 1);
    });
    assert_eq!(segment(&new).timestamps().unwrap().echo, Stamp::new(0x0a0b_0c0d));
    assert_eq!(segment(&new).timestamps().unwrap().value, Stamp::new(0x0102_0304));
    assert_eq!(blocks(&new), [(10, 312)]);
}

#[test]
fn blocks_that_go_leave_no_operations_and_the_others_close_up() {
    let below = Seq::new(0xaf99_5c10);
    let new = changed(V4_SACK4, |rewrite| {
        assert_eq!(rewrite.map_sacks(|block| block.start.is_after(below).then_some(block)), 2);
    });
    assert_eq!(blocks(&new), [(0xaf99_6a97, 0xaf99_6f6f), (0xaf99_60e7, 0xaf99_65bf)]);
    assert_eq!(&new[40..44], [1, 1, 5, 18]);
    assert_eq!(&new[60..], [1; 16]);
    for bytes in [V4_DSACK, V4_SACK3, V4_SACK4, V6_SACK] {
        let new = changed(bytes, |rewrite| assert_eq!(rewrite.map_sacks(|_| None), 0));
        assert_eq!(blocks(&new), []);
        assert!(segment(&new).options().all(|option| matches!(option, TcpOption::Nop | TcpOption::Timestamps(_))));
        assert_eq!(segment(&new).timestamps(), segment(bytes).timestamps());
    }
}

#[test]
fn a_block_can_be_cut() {
    let new = changed(V4_SACK3, |rewrite| {
        let ack = Seq::new(0x846f_9600);
        let left = rewrite.map_sacks(|block| {
            let rest = Span::new(block.start.later(ack), block.end);
            (!rest.is_empty()).then_some(rest)
        });
        assert_eq!(left, 2);
    });
    assert_eq!(blocks(&new), [(0x846f_9f1f, 0x846f_a3eb), (0x846f_9600, 0x846f_9a53)]);
}

#[test]
fn damage_is_not_made_whole() {
    for bytes in FILLED {
        let mut new = bytes.to_vec();
        let last = new.len() - 1;
        new[last] ^= 4;
        new[10] ^= 1;
        let before = (packet(&new).checksum(), packet(&new).is_header_right());
        let mut rewrite = Rewrite::of(&mut new).unwrap();
        rewrite.set_window(7);
        rewrite.map_sacks(|_| None);
        // Even where the damaged bytes are overwritten.
        assert_eq!(before.0, Checksum::Wrong);
        assert_eq!(packet(&new).checksum(), Checksum::Wrong);
        assert_eq!(packet(&new).is_header_right(), before.1);
    }
}
