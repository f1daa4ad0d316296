//! The segments of a playlist or manifest, in their order, and how to find one of them.
//!
//! A player asks for an address; what is wanted is the segment's duration, what is left after it, and the next few
//! addresses. Thousands of segments are kept for each list, and for many lists, so they are kept small: addresses lie one
//! behind the other in one string, and segments that a template describes are not written out at all.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use url::Url;

/// One of those that a player may choose between.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Rendition {
    /// Of those with the same number the player takes one at a time.
    pub(super) set: usize,
    pub(super) pieces: Pieces,
    /// Whether it ends with the last of them; otherwise more will be known later (a live one).
    pub(super) ends: bool,
}

/// One segment.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Piece {
    pub(super) url: Url,
    /// Which bytes of it; none: all.
    pub(super) span: Option<Range<u64>>,
    pub(super) duration: Duration,
}

/// Where a piece stands among the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Spot {
    /// How long it lasts.
    pub(super) lasts: Duration,
    /// How long all that follow it last; none: nobody knows.
    pub(super) left: Option<Duration>,
}

/// Pieces that follow one another.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Pieces {
    /// Each by its address.
    List(List),
    /// By numbers in an address, each as long as the others.
    Numbered {
        template: Template,
        /// The last one, where there is one.
        last: Option<u64>,
        duration: Duration,
    },
    /// By numbers or times in an address, and how long each lasts by a timeline.
    Timed {
        template: Template,
        /// The address has the time of a segment; otherwise its number.
        by_time: bool,
        /// The number of the first segment.
        first: u64,
        /// Shared by all representations that have the same.
        timeline: Arc<Timeline>,
        /// Ticks in a second.
        timescale: u64,
    },
}

/// Addresses, one by one.
#[derive(Clone, PartialEq, Default, Debug)]
pub(super) struct List {
    /// All addresses, one behind the other.
    text: String,
    entries: Vec<Entry>,
}

#[derive(Clone, PartialEq, Debug)]
struct Entry {
    hash: u64,
    /// Where the address ends in the text; it begins where the one before ends.
    end: usize,
    span: Option<Range<u64>>,
    duration: Duration,
}

/// An address around a number.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Template {
    pub(super) before: String,
    pub(super) after: String,
    /// How many digits at least.
    pub(super) width: usize,
}

/// When segments begin and how long they last, in ticks: runs of segments of equal length.
#[derive(Clone, PartialEq, Default, Debug)]
pub(super) struct Timeline {
    runs: Vec<Run>,
    /// The length of all.
    ticks: u64,
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Run {
    start: u64,
    /// Of each segment; never zero.
    ticks: u64,
    count: u64,
    /// Segments of the runs before this one, and their length.
    index: u64,
    before: u64,
}

/// A segment of a timeline.
struct At {
    index: u64,
    start: u64,
    ticks: u64,
    /// The length of all segments up to its end.
    upto: u64,
}

impl Rendition {
    /// Where a piece stands; none: it is not of this rendition.
    pub(super) fn spot(&self, url: &Url, span: Option<&Range<u64>>) -> Option<Spot> {
        let (lasts, left) = match &self.pieces {
            Pieces::List(list) => {
                let at = list.position(url, span)?;
                let left = list.entries.iter().skip(at + 1).map(|entry| entry.duration);
                let left = left.fold(Duration::ZERO, Duration::saturating_add);
                (list.entries.get(at)?.duration, Some(left))
            }
            Pieces::Numbered { template, last, duration } => {
                let number = template.number(url).filter(|_| span.is_none())?;
                let left = last.map(|last| {
                    u32::try_from(last.saturating_sub(number))
                        .map_or(Duration::MAX, |left| duration.saturating_mul(left))
                });
                (*duration, left)
            }
            Pieces::Timed { template, by_time, first, timeline, timescale } => {
                let number = template.number(url).filter(|_| span.is_none())?;
                let at = timeline.find(number, *by_time, *first)?;
                let left = timeline.ticks.saturating_sub(at.upto);
                (lasting(at.ticks, *timescale), Some(lasting(left, *timescale)))
            }
        };
        Some(Spot { lasts, left: left.filter(|_| self.ends) })
    }
}

impl Pieces {
    /// What follows a piece, at most so many; none: the piece is not of this rendition.
    pub(super) fn after(&self, url: &Url, span: Option<&Range<u64>>, most: usize) -> Option<Vec<Piece>> {
        match self {
            Self::List(list) => {
                let at = list.position(url, span)?;
                Some((at + 1..list.entries.len()).take(most).filter_map(|at| list.piece(at)).collect())
            }
            Self::Numbered { template, last, duration } => {
                let number = template.number(url).filter(|_| span.is_none())?;
                let next = (number.saturating_add(1)..=last.unwrap_or(u64::MAX)).take(most);
                let piece = |n| Some(Piece { url: template.url(n)?, span: None, duration: *duration });
                Some(next.filter_map(piece).collect())
            }
            Self::Timed { template, by_time, first, timeline, timescale } => {
                let number = template.number(url).filter(|_| span.is_none())?;
                let index = timeline.find(number, *by_time, *first)?.index;
                let piece = |index| {
                    let At { start, ticks, .. } = timeline.at(index)?;
                    let value = if *by_time { start } else { first.checked_add(index)? };
                    Some(Piece { url: template.url(value)?, span: None, duration: lasting(ticks, *timescale) })
                };
                Some((index.saturating_add(1)..u64::MAX).take(most).map_while(piece).collect())
            }
        }
    }

    /// The memory it takes up, in bytes.
    pub(super) fn size(&self) -> usize {
        let own = match self {
            Self::List(list) => list.text.capacity() + list.entries.capacity() * size_of::<Entry>(),
            Self::Numbered { template, .. } => template.size(),
            Self::Timed { template, timeline, .. } => {
                // Of a shared timeline each has its part.
                template.size() + timeline.size() / Arc::strong_count(timeline).max(1)
            }
        };
        own + size_of::<Rendition>()
    }
}

impl List {
    /// One more segment at the end.
    pub(super) fn push(&mut self, url: &Url, span: Option<Range<u64>>, duration: Duration) {
        self.text.push_str(url.as_str());
        self.entries.push(Entry { hash: hash(url), end: self.text.len(), span, duration });
    }

    /// The bytes that one more segment takes up.
    pub(super) fn cost(url: &Url) -> usize {
        url.as_str().len() + size_of::<Entry>()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The span of the last segment, if it is of this address.
    pub(super) fn last_span(&self, url: &Url) -> Option<Range<u64>> {
        let at = self.entries.len().checked_sub(1)?;
        self.entries.get(at).filter(|_| self.address(at) == Some(url.as_str()))?.span.clone()
    }

    /// Gives back what is not needed.
    pub(super) fn done(mut self) -> Self {
        self.text.shrink_to_fit();
        self.entries.shrink_to_fit();
        self
    }

    fn address(&self, at: usize) -> Option<&str> {
        let start = at.checked_sub(1).map_or(Some(0), |before| self.entries.get(before).map(|entry| entry.end))?;
        self.text.get(start..self.entries.get(at)?.end)
    }

    fn position(&self, url: &Url, span: Option<&Range<u64>>) -> Option<usize> {
        let wanted = hash(url);
        let is_it = |(at, entry): (usize, &Entry)| {
            entry.hash == wanted && entry.span.as_ref() == span && self.address(at) == Some(url.as_str())
        };
        self.entries.iter().enumerate().position(is_it)
    }

    fn piece(&self, at: usize) -> Option<Piece> {
        let Entry { span, duration, .. } = self.entries.get(at)?;
        Some(Piece { url: Url::parse(self.address(at)?).ok()?, span: span.clone(), duration: *duration })
    }
}

impl Template {
    /// The number in an address.
    fn number(&self, url: &Url) -> Option<u64> {
        let digits = url.as_str().strip_prefix(self.before.as_str())?.strip_suffix(self.after.as_str())?;
        let is_number = digits.len() >= self.width && digits.bytes().all(|byte| byte.is_ascii_digit());
        if is_number { digits.parse().ok() } else { None }
    }

    fn url(&self, number: u64) -> Option<Url> {
        let Self { before, after, width } = self;
        Url::parse(&format!("{before}{number:0width$}{after}", width = *width)).ok()
    }

    pub(super) fn size(&self) -> usize {
        self.before.capacity() + self.after.capacity()
    }
}

impl Timeline {
    /// So many more segments from a time on.
    pub(super) fn push(&mut self, start: u64, ticks: u64, count: u64) {
        let index = self.runs.last().map_or(0, |run| run.index.saturating_add(run.count));
        self.runs.push(Run { start, ticks: ticks.max(1), count, index, before: self.ticks });
        self.ticks = self.ticks.saturating_add(ticks.saturating_mul(count));
    }

    pub(super) fn size(&self) -> usize {
        self.runs.capacity() * size_of::<Run>()
    }

    /// The bytes of one run.
    pub(super) fn cost() -> usize {
        size_of::<Run>()
    }

    /// The segment with this time, or this number where the first one has `first`.
    fn find(&self, value: u64, by_time: bool, first: u64) -> Option<At> {
        if !by_time {
            return self.at(value.checked_sub(first)?);
        }
        let run = self.runs.get(self.runs.partition_point(|run| run.start <= value).checked_sub(1)?)?;
        let within = value.checked_sub(run.start)?;
        let is_start = within.is_multiple_of(run.ticks) && within / run.ticks < run.count;
        self.at(run.index.checked_add(within / run.ticks)?).filter(|_| is_start)
    }

    fn at(&self, index: u64) -> Option<At> {
        let run = self.runs.get(self.runs.partition_point(|run| run.index <= index).checked_sub(1)?)?;
        let within = index.checked_sub(run.index).filter(|within| *within < run.count)?;
        let start = run.start.checked_add(run.ticks.checked_mul(within)?)?;
        let upto = run.before.saturating_add(run.ticks.saturating_mul(within + 1));
        Some(At { index, start, ticks: run.ticks, upto })
    }
}

/// How long so many ticks are.
pub(super) fn lasting(ticks: u64, timescale: u64) -> Duration {
    Duration::try_from_secs_f64(ticks as f64 / timescale.max(1) as f64).unwrap_or_default()
}

fn hash(url: &Url) -> u64 {
    let mut hasher = DefaultHasher::new();
    url.as_str().hash(&mut hasher);
    hasher.finish()
}

/// All renditions of one list together. chosen: eleven hours in segments of two seconds.
pub(super) const MOST_PIECES: usize = 20_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    fn addresses(pieces: &Pieces, first: &str, most: usize) -> Option<Vec<String>> {
        let next = pieces.after(&url(first), None, most)?;
        Some(next.iter().map(|piece| piece.url.as_str().to_owned()).collect())
    }

    fn template() -> Template {
        Template { before: "https://h/v-".to_owned(), after: ".m4s".to_owned(), width: 3 }
    }

    #[test]
    fn numbers_go_on_with_their_zeros() {
        let pieces = Pieces::Numbered { template: template(), last: Some(10), duration: Duration::from_secs(2) };
        let after = |url| addresses(&pieces, url, 2);
        assert_eq!(after("https://h/v-008.m4s").unwrap(), ["https://h/v-009.m4s", "https://h/v-010.m4s"]);
        assert_eq!(after("https://h/v-010.m4s").unwrap(), [""; 0]);
        let rendition = Rendition { set: 0, pieces: pieces.clone(), ends: true };
        let spot = rendition.spot(&url("https://h/v-007.m4s"), None);
        assert_eq!(spot, Some(Spot { lasts: Duration::from_secs(2), left: Some(Duration::from_secs(6)) }));
        for other in ["https://h/v-8.m4s", "https://h/v-+08.m4s", "https://h/w-008.m4s", "https://h/v-008.mp4"] {
            assert_eq!(after(other), None, "{other}");
        }
    }

    #[test]
    fn a_timeline_is_found_by_time_and_by_number() {
        let mut timeline = Timeline::default();
        timeline.push(100, 20, 2);
        timeline.push(150, 30, 1);
        let timed = |by_time| Pieces::Timed {
            template: template(),
            by_time,
            first: 7,
            timeline: Arc::new(timeline.clone()),
            timescale: 10,
        };
        let by_time = timed(true);
        assert_eq!(
            addresses(&by_time, "https://h/v-100.m4s", 9).unwrap(),
            ["https://h/v-120.m4s", "https://h/v-150.m4s"]
        );
        assert_eq!(addresses(&by_time, "https://h/v-110.m4s", 9), None);
        assert_eq!(addresses(&by_time, "https://h/v-140.m4s", 9), None);
        let by_number = timed(false);
        assert_eq!(
            addresses(&by_number, "https://h/v-007.m4s", 9).unwrap(),
            ["https://h/v-008.m4s", "https://h/v-009.m4s"]
        );
        assert_eq!(addresses(&by_number, "https://h/v-006.m4s", 9), None);
        let rendition = Rendition { set: 0, pieces: by_time, ends: true };
        let spot = rendition.spot(&url("https://h/v-120.m4s"), None).unwrap();
        assert_eq!(spot, Spot { lasts: Duration::from_secs(2), left: Some(Duration::from_secs(3)) });
    }

    #[test]
    fn a_timeline_without_end_takes_no_room() {
        let mut timeline = Timeline::default();
        timeline.push(u64::MAX - 5, 2, u64::MAX);
        timeline.push(0, u64::MAX, u64::MAX);
        assert!(timeline.at(3).is_none() && timeline.at(1).is_some());
        assert!(timeline.size() < 1000);
    }

    #[test]
    fn a_list_has_its_addresses_behind_one_another() {
        let mut list = List::default();
        let all = url("https://h/all.ts");
        list.push(&all, Some(0..10), Duration::from_secs(1));
        assert_eq!((list.last_span(&all), list.last_span(&url("https://h/b.ts"))), (Some(0..10), None));
        list.push(&all, Some(10..20), Duration::from_secs(2));
        list.push(&url("https://h/b.ts"), None, Duration::from_secs(3));
        let pieces = Pieces::List(list.done());
        let next = pieces.after(&all, Some(&(0..10)), 5).unwrap();
        assert_eq!(next[0], Piece { url: all.clone(), span: Some(10..20), duration: Duration::from_secs(2) });
        assert_eq!((next.len(), next[1].url.as_str()), (2, "https://h/b.ts"));
        assert_eq!(pieces.after(&all, None, 5), None);
        assert_eq!(pieces.after(&next[1].url, None, 5), Some(Vec::new()));
        assert!(pieces.size() > 3 * size_of::<Entry>());
    }
}
