//! Both directions of a link take turns on one 802.11 channel.
//!
//! In: the two lanes, the channel, and until when. Out: frames sent, collided or given up, in the lanes' books.
//!
//! 1. A frame is committed when it begins, not before: until then a packet of the other side may still come first.
//! 2. A packet leaves its queue with its first attempt; what CoDel drops then is not sent, and the contention is held
//!    again.
//! 3. What is foretold is never late. Behind a collision or a drop a smaller frame may come, so that then no more is
//!    foretold than that nothing arrives before the attempt begins.
//!
//! Asking the channel for "the next free time" as a server does was not enough: who goes next depends on both.

use marline_core::units::Instant;

use super::Packet;
use super::lane::Lane;
use crate::medium::{Medium, Retry};

/// Lets both stations send until `now`; the answer is before when nothing arrives.
pub(super) fn contend<P: Packet>(medium: &mut Medium, lanes: &mut [Lane<P>; 2], now: Instant) -> Option<Instant> {
    loop {
        let attempts = [0, 1].map(|lane| medium.attempt(lane, lanes[lane].ready_since()?));
        let first = match attempts {
            [Some(down), Some(up)] if up.start < down.start => 1,
            [Some(_), _] => 0,
            [None, Some(_)] => 1,
            [None, None] => return None,
        };
        let attempt = attempts[first]?;
        let clash = match attempts {
            [Some(down), Some(up)] if Medium::collide(down, up) => Some([down, up]),
            _ => None,
        };
        if attempt.start > now {
            let certain = clash.is_none() && lanes[first].is_certain();
            let size = lanes[first].ready_size();
            let arrives = if certain { medium.arrival(first, size, attempt.start) } else { attempt.start };
            return Some(lanes[first].earliest(arrives));
        }
        // CoDel may drop what was to be sent; then the contention is another one.
        let senders: &[usize] = if clash.is_some() { &[0, 1] } else { &[first] };
        if !senders.iter().all(|lane| lanes[*lane].take_up(attempt.start)) {
            continue;
        }
        match clash {
            Some(attempts) => {
                let retries = medium.clash([lanes[0].ready_size(), lanes[1].ready_size()], attempts);
                for (lane, retry) in lanes.iter_mut().zip(retries) {
                    if retry == Retry::GivenUp {
                        lane.give_up();
                    }
                }
            }
            None => {
                let arrived = medium.send(first, lanes[first].ready_size(), attempt);
                lanes[first].sent(arrived);
            }
        }
    }
}
