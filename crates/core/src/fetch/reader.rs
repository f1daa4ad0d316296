//! The in-order reader of a download, if there is one: a player, or a pipe.
//!
//! The reader consumes the bytes from the front. Requests reach at most one window beyond its position, so that the
//! driver need not hold more. What the reader has consumed cannot be taken back: a download of another version or from
//! another mirror cannot replace it.

use crate::units::DataSize;

/// Position and window of the reader.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    /// How far requests may reach beyond its position; none: there is no reader, and any part may be fetched.
    window: Option<DataSize>,
    /// It has consumed everything before this offset.
    position: u64,
}

impl Reader {
    pub(super) fn new(window: Option<DataSize>) -> Self {
        Self { window, position: 0 }
    }

    /// Whether there is a reader.
    pub(super) fn is_present(&self) -> bool {
        self.window.is_some()
    }

    /// Size of its window; none: no reader.
    pub(super) fn window(&self) -> Option<DataSize> {
        self.window
    }

    /// Everything before this offset has been consumed.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Whether it has consumed bytes of the present version.
    pub(super) fn has_consumed(&self) -> bool {
        self.window.is_some() && self.position > 0
    }

    /// End of the bytes that may be requested.
    pub(super) fn window_end(&self) -> u64 {
        self.window.map_or(u64::MAX, |window| self.position.saturating_add(window.bytes()))
    }

    /// It has consumed everything before `end`.
    pub(super) fn on_consumed(&mut self, end: u64) {
        self.position = self.position.max(end);
    }

    /// It continues at `offset`: after a seek, or at zero because the download begins again.
    pub(super) fn seek(&mut self, offset: u64) {
        self.position = offset;
    }
}
