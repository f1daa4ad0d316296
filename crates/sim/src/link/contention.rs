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
use super::half_link::HalfLink;
use crate::wifi_mac::{CollisionOutcome, WifiChannel};

/// Lets both stations send until `now`; the answer is before when nothing arrives.
pub(super) fn run_contention<P: Packet>(
    medium: &mut WifiChannel,
    half_links: &mut [HalfLink<P>; 2],
    now: Instant,
) -> Option<Instant> {
    loop {
        let attempts =
            [0, 1].map(|direction| medium.next_attempt(direction, half_links[direction].pending_since()?));
        let first = match attempts {
            [Some(down), Some(up)] if up.start < down.start => 1,
            [Some(_), _] => 0,
            [None, Some(_)] => 1,
            [None, None] => return None,
        };
        let attempt = attempts[first]?;
        let collision = match attempts {
            [Some(down), Some(up)] if WifiChannel::is_collision(down, up) => Some([down, up]),
            _ => None,
        };
        if attempt.start > now {
            let certain = collision.is_none() && half_links[first].is_next_certain();
            let size = half_links[first].pending_size();
            let arrival = if certain { medium.arrival(first, size, attempt.start) } else { attempt.start };
            return Some(half_links[first].earliest_due(arrival));
        }
        // CoDel may drop what was to be sent; then the contention is another one.
        let senders: &[usize] = if collision.is_some() { &[0, 1] } else { &[first] };
        if !senders.iter().all(|direction| half_links[*direction].start_packet(attempt.start)) {
            continue;
        }
        match collision {
            Some(attempts) => {
                let retries =
                    medium.collide([half_links[0].pending_size(), half_links[1].pending_size()], attempts);
                for (half_link, retry) in half_links.iter_mut().zip(retries) {
                    if retry == CollisionOutcome::GivenUp {
                        half_link.drop_transmitting();
                    }
                }
            }
            None => {
                let arrived = medium.transmit(first, half_links[first].pending_size(), attempt);
                half_links[first].on_transmitted(arrived);
            }
        }
    }
}
