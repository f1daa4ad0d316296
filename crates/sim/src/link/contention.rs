//! Channel access of a Wi-Fi link: its two directions contend for one 802.11 channel.
//!
//! [`run_contention`] transmits, collides or drops frames until a given time, and records the result in the two
//! half links.
//!
//! 1. A frame is committed when it begins, not earlier: until then a packet of the other direction may still win.
//! 2. A packet leaves its queue with its first attempt. If CoDel drops it then, nothing is sent and the contention
//!    is repeated.
//! 3. The returned time is never too late. After a collision or a drop a smaller frame may be next, so in these
//!    cases the result is only the start of the attempt, before which nothing can arrive.
//!
//! Treating the channel as a server with a next free time does not work, because the next sender depends on both
//! directions.

use marline_core::units::Instant;

use super::Packet;
use super::half_link::HalfLink;
use crate::wifi_mac::{CollisionOutcome, WifiChannel};

/// Lets both stations transmit until `now`. Returns a time before which nothing more arrives, if anything is
/// queued.
pub(super) fn run_contention<P: Packet>(
    medium: &mut WifiChannel,
    half_links: &mut [HalfLink<P>; 2],
    now: Instant,
) -> Option<Instant> {
    loop {
        // The earlier attempt wins; equal slots collide.
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
        // Nothing more happens by `now`: predict the next delivery.
        if attempt.start > now {
            let certain = collision.is_none() && half_links[first].is_next_certain();
            let size = half_links[first].pending_size();
            let arrival = if certain { medium.arrival(first, size, attempt.start) } else { attempt.start };
            return Some(half_links[first].earliest_due(arrival));
        }
        // CoDel may drop the packet that was to be sent; then the contention starts again.
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
