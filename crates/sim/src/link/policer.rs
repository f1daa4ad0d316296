//! A token bucket that decides whether a packet may pass. It holds nothing and delays nothing.

use marline_core::units::{Bitrate, Instant};

use super::Packet;
use crate::spec::PolicerSpec;

#[derive(Clone, Debug)]
pub(super) struct Policer {
    rate: Bitrate,
    /// Tokens in 10^-9 bit, so that a rate is tokens per nanosecond and nothing is rounded.
    burst: u64,
    tokens: u64,
    refilled_at: Instant,
}

/// Tokens for a byte.
const TOKENS_PER_BYTE: u64 = 8_000_000_000;

impl Policer {
    pub(super) fn new(police: PolicerSpec) -> Self {
        let burst = police.burst.bytes().saturating_mul(TOKENS_PER_BYTE);
        Self { rate: police.rate, burst, tokens: burst, refilled_at: Instant::ZERO }
    }

    /// Whether the packet that comes at `now` conforms. One that does takes its tokens.
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
