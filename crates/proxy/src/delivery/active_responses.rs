//! The responses of one resource that are in progress: which ranges, how much of each has arrived, and how much the
//! player has read.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use marline_core::units::DataSize;
use marline_download::Progress;
use marline_download::store::Reader;

/// The responses; see the [module documentation](self).
pub(crate) struct ActiveResponses {
    /// By the number of the response.
    entries: RefCell<BTreeMap<u64, Entry>>,
    /// Window memory of all responses together, in bytes.
    granted_bytes: Cell<u64>,
    /// Bytes delivered to the player in all responses so far, the ended ones included.
    delivered_bytes: Cell<u64>,
    /// The player closed the response that ended last before it had read all of it.
    left_early: Cell<bool>,
    /// The resource is being opened before the player requests it.
    is_opening: Cell<bool>,
    /// The progress of the transfer that reported last.
    progress: RefCell<Option<Progress>>,
    last_used: Cell<Instant>,
}

/// The byte range of a response, and the reader of its window (the bounded buffer that its transfer fills).
type Entry = (Range<u64>, Weak<Reader>);

/// The buffer of one response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ResponseBuffer {
    /// The byte range of the response; the end is `u64::MAX` while it is unknown.
    pub(crate) range: Range<u64>,
    /// How far the player has read.
    pub(crate) read_end: u64,
    /// Bytes that are buffered in order.
    pub(crate) in_order: u64,
    /// Bytes that are buffered beyond a gap.
    pub(crate) out_of_order: u64,
}

impl ResponseBuffer {
    fn of((range, reader): &Entry) -> Option<Self> {
        let (read_end, in_order, out_of_order) = reader.upgrade()?.buffered();
        Some(Self { range: range.clone(), read_end, in_order, out_of_order })
    }

    /// All bytes of the response before this offset have arrived.
    pub(crate) fn in_order_end(&self) -> u64 {
        self.read_end + self.in_order
    }

    /// Bytes buffered, in order or not.
    pub(crate) fn buffered(&self) -> u64 {
        self.in_order + self.out_of_order
    }
}

impl Default for ActiveResponses {
    fn default() -> Self {
        Self {
            entries: RefCell::default(),
            granted_bytes: Cell::new(0),
            delivered_bytes: Cell::new(0),
            left_early: Cell::new(false),
            is_opening: Cell::new(false),
            progress: RefCell::default(),
            last_used: Cell::new(Instant::now()),
        }
    }
}

impl ActiveResponses {
    /// Adds a response with a window of this size.
    pub(crate) fn add(&self, id: u64, range: Range<u64>, reader: &Rc<Reader>, window: DataSize) {
        self.granted_bytes.set(self.granted_bytes.get() + window.bytes());
        self.entries.borrow_mut().insert(id, (range, Rc::downgrade(reader)));
    }

    /// Forgets a response that has ended, with a window of this size. `is_complete`: the player has read all of it.
    /// Returns whether it was the last one.
    pub(crate) fn remove(&self, id: u64, window: DataSize, is_complete: bool) -> bool {
        self.left_early.set(!is_complete);
        self.entries.borrow_mut().remove(&id);
        self.granted_bytes.set(self.granted_bytes.get().saturating_sub(window.bytes()));
        self.touch();
        let was_last = self.count() == 0;
        if was_last {
            *self.progress.borrow_mut() = None;
        }
        was_last
    }

    /// The number of responses in progress.
    pub(crate) fn count(&self) -> usize {
        self.entries.borrow().len()
    }

    /// Window memory that was granted to them.
    pub(crate) fn granted(&self) -> DataSize {
        DataSize::from_bytes(self.granted_bytes.get())
    }

    /// The buffers of all responses.
    pub(crate) fn buffers(&self) -> Vec<ResponseBuffer> {
        self.entries.borrow().values().filter_map(ResponseBuffer::of).collect()
    }

    /// The buffer of one response.
    pub(crate) fn buffer(&self, id: u64) -> Option<ResponseBuffer> {
        ResponseBuffer::of(self.entries.borrow().get(&id)?)
    }

    /// The newest response with its buffer, which represents the player: a player opens a new one where it continues to
    /// read.
    pub(crate) fn newest(&self) -> Option<(u64, ResponseBuffer)> {
        let entries = self.entries.borrow();
        let (id, entry) = entries.last_key_value()?;
        Some((*id, ResponseBuffer::of(entry)?))
    }

    /// Bytes buffered for the player, in order or not.
    pub(crate) fn buffered_bytes(&self) -> u64 {
        self.buffers().iter().map(ResponseBuffer::buffered).sum()
    }

    /// Whether everything that was requested has arrived, or will within this time, and no response was abandoned. At
    /// most the last eighth is counted as arriving: a rate that has just been measured may be many times too high.
    pub(crate) fn are_almost_complete(&self, within: Duration, total: Option<DataSize>) -> bool {
        let total = total.map_or(u64::MAX, DataSize::bytes);
        let rate = self.progress.borrow().as_ref().map_or(0.0, |progress| progress.rate);
        let soon_bytes = (rate / 8.0 * within.as_secs_f64()) as u64;
        let is_almost_complete = |response: &ResponseBuffer| {
            let end = response.range.end.min(total);
            let missing = end.saturating_sub(response.read_end + response.buffered());
            missing <= soon_bytes.min(end.saturating_sub(response.range.start) / 8)
        };
        let was_abandoned = self.left_early.get() && self.count() == 0;
        !self.is_opening.get() && !was_abandoned && self.buffers().iter().all(is_almost_complete)
    }

    /// Whether the resource is being opened before the player requests it.
    pub(crate) fn is_opening(&self) -> bool {
        self.is_opening.get()
    }

    /// Marks the resource as being opened until the result is dropped.
    pub(crate) fn begin_opening(self: &Rc<Self>) -> OpeningGuard {
        self.is_opening.set(true);
        OpeningGuard(Rc::clone(self))
    }

    /// Bytes delivered to the player so far.
    pub(crate) fn delivered_bytes(&self) -> u64 {
        self.delivered_bytes.get()
    }

    pub(crate) fn add_delivered(&self, bytes: u64) {
        self.delivered_bytes.set(self.delivered_bytes.get() + bytes);
    }

    /// The progress of the transfer that reported last; `None`: no response is in progress.
    pub(crate) fn progress(&self) -> Option<Progress> {
        self.progress.borrow().clone()
    }

    pub(crate) fn set_progress(&self, progress: &Progress) {
        // A transfer may report once more after its response has ended.
        if self.count() > 0 {
            *self.progress.borrow_mut() = Some(progress.clone());
        }
    }

    /// Notes that the player has requested the resource.
    pub(crate) fn touch(&self) {
        self.last_used.set(Instant::now());
    }

    /// The time of the last request or of the end of the last response.
    pub(crate) fn last_used(&self) -> Instant {
        self.last_used.get()
    }
}

/// Ends the opening of a resource when this is dropped.
pub(crate) struct OpeningGuard(Rc<ActiveResponses>);

impl Drop for OpeningGuard {
    fn drop(&mut self) {
        self.0.is_opening.set(false);
    }
}
