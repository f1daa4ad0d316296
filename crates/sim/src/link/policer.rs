//! Token bucket that drops packets above a rate. Unlike a shaper it neither queues nor delays packets.

use marline_core::units::{Bitrate, Instant};

use super::Packet;
use crate::spec::PolicerSpec;

#[derive(Clone, Debug)]
pub(super) struct Policer {
    rate: Bitrate,
    /// Size of the bucket and tokens in it, in 10^-9 bit: then a rate is tokens per nanosecond, without rounding.
    burst: u64,
    tokens: u64,
    refilled_at: Instant,
}

const TOKENS_PER_BYTE: u64 = 8_000_000_000;

impl Policer {
    pub(super) fn new(spec: PolicerSpec) -> Self {
        let burst = spec.burst.bytes().saturating_mul(TOKENS_PER_BYTE);
        Self { rate: spec.rate, burst, tokens: burst, refilled_at: Instant::ZERO }
    }

    /// Whether a packet that arrives at `now` conforms. A conforming packet consumes its tokens.
    pub(super) fn conforms(&mut self, packet: &impl Packet, now: Instant) -> bool {
        let earned = now.since(self.refilled_at).as_nanos() * u128::from(self.rate.bits_per_sec());
        let earned = u64::try_from(earned).unwrap_or(u64::MAX);
        self.tokens = self.tokens.saturating_add(earned).min(self.burst);
        self.refilled_at = self.refilled_at.max(now);
        let remaining = self.tokens.checked_sub(packet.size().bytes().saturating_mul(TOKENS_PER_BYTE));
        self.tokens = remaining.unwrap_or(self.tokens);
        remaining.is_some()
    }
}
