//! The segments of a playlist or manifest in their order, and how to find one of them by its URL.
//!
//! For a requested URL it yields the segment's duration, the time that follows it, and the next few segments. Thousands
//! of segments are kept for each of many playlists, so they are stored compactly: URLs are concatenated in one string,
//! and segments that a template describes are not expanded.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use url::Url;

/// One of the renditions between which a player may choose.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Rendition {
    /// Of the renditions with the same number the player selects one at a time.
    pub(crate) set: usize,
    pub(crate) index: SegmentIndex,
    /// Whether the last segment ends the rendition; otherwise more segments will follow (live).
    pub(crate) is_final: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct MediaSegment {
    pub(crate) url: Url,
    /// Byte range of the resource; `None`: all of it.
    pub(crate) range: Option<Range<u64>>,
    pub(crate) duration: Duration,
}

/// Duration of a segment, and what follows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentTiming {
    /// Duration of the segment.
    pub(crate) duration: Duration,
    /// Total duration of all segments after it; `None`: unknown (live).
    pub(crate) time_left: Option<Duration>,
}

/// The segments of a rendition.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum SegmentIndex {
    /// Each with its URL.
    List(SegmentUrls),
    /// Numbered by a template, all with the same duration.
    Numbered {
        template: SegmentTemplate,
        /// The number of the last segment, if there is one.
        last_number: Option<u64>,
        duration: Duration,
    },
    /// Numbered or timed by a template, with durations from a timeline.
    Timeline {
        template: SegmentTemplate,
        /// The URL contains the start time of a segment; otherwise its number.
        by_time: bool,
        /// The number of the first segment.
        first_number: u64,
        /// Shared by all representations with the same timeline.
        timeline: Arc<SegmentTimeline>,
        /// Ticks per second.
        timescale: u64,
    },
}

/// Segments with individual URLs.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct SegmentUrls {
    /// All URLs, concatenated.
    urls: String,
    entries: Vec<Entry>,
}

#[derive(Clone, PartialEq, Debug)]
struct Entry {
    hash: u64,
    /// The end of this URL in `urls`; it begins where the previous one ends.
    url_end: usize,
    range: Option<Range<u64>>,
    duration: Duration,
}

/// A URL template around a number.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct SegmentTemplate {
    pub(crate) prefix: String,
    pub(crate) suffix: String,
    /// The minimum number of digits, padded with zeros.
    pub(crate) min_digits: usize,
}

/// Start times and durations of segments in ticks, as runs of segments of equal duration.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct SegmentTimeline {
    runs: Vec<TimelineRun>,
    /// Total duration of all segments.
    total_ticks: u64,
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct TimelineRun {
    /// Start time of the first segment, in ticks.
    start: u64,
    /// Duration of each segment; never zero.
    ticks: u64,
    count: u64,
    /// Number of segments in previous runs.
    first_index: u64,
    /// Duration of previous runs.
    ticks_before: u64,
}

/// A segment of a timeline.
struct TimelineSegment {
    index: u64,
    /// Start time and duration, in ticks.
    start: u64,
    ticks: u64,
    /// The total duration up to the end of this segment.
    end_ticks: u64,
}

impl Rendition {
    /// The timing of a segment; `None`: it does not belong to this rendition.
    pub(crate) fn timing(&self, url: &Url, range: Option<&Range<u64>>) -> Option<SegmentTiming> {
        let (duration, time_left) = match &self.index {
            SegmentIndex::List(list) => {
                let position = list.position(url, range)?;
                let following = list.entries.iter().skip(position + 1).map(|entry| entry.duration);
                let left = following.fold(Duration::ZERO, Duration::saturating_add);
                (list.entries.get(position)?.duration, Some(left))
            }
            SegmentIndex::Numbered { template, last_number: last, duration } => {
                let number = template.number(url).filter(|_| range.is_none())?;
                let time_left = last.map(|last| {
                    u32::try_from(last.saturating_sub(number))
                        .map_or(Duration::MAX, |left| duration.saturating_mul(left))
                });
                (*duration, time_left)
            }
            SegmentIndex::Timeline { template, by_time, first_number: first, timeline, timescale } => {
                let number = template.number(url).filter(|_| range.is_none())?;
                let location = timeline.find(number, *by_time, *first)?;
                let ticks_left = timeline.total_ticks.saturating_sub(location.end_ticks);
                (ticks_to_duration(location.ticks, *timescale), Some(ticks_to_duration(ticks_left, *timescale)))
            }
        };
        Some(SegmentTiming { duration, time_left: time_left.filter(|_| self.is_final) })
    }
}

impl SegmentIndex {
    /// The segments that follow one, at most `max`; `None`: the segment does not belong to this rendition.
    pub(crate) fn after(&self, url: &Url, range: Option<&Range<u64>>, max: usize) -> Option<Vec<MediaSegment>> {
        match self {
            Self::List(list) => {
                let position = list.position(url, range)?;
                Some((position + 1..list.entries.len()).take(max).filter_map(|at| list.segment(at)).collect())
            }
            Self::Numbered { template, last_number: last, duration } => {
                let number = template.number(url).filter(|_| range.is_none())?;
                let next = (number.saturating_add(1)..=last.unwrap_or(u64::MAX)).take(max);
                let segment = |n| Some(MediaSegment { url: template.url(n)?, range: None, duration: *duration });
                Some(next.filter_map(segment).collect())
            }
            Self::Timeline { template, by_time, first_number: first, timeline, timescale } => {
                let number = template.number(url).filter(|_| range.is_none())?;
                let index = timeline.find(number, *by_time, *first)?.index;
                let segment = |index| {
                    let TimelineSegment { start, ticks, .. } = timeline.at(index)?;
                    let value = if *by_time { start } else { first.checked_add(index)? };
                    Some(MediaSegment {
                        url: template.url(value)?,
                        range: None,
                        duration: ticks_to_duration(ticks, *timescale),
                    })
                };
                Some((index.saturating_add(1)..u64::MAX).take(max).map_while(segment).collect())
            }
        }
    }

    /// The memory that this uses, in bytes.
    pub(crate) fn memory_size(&self) -> usize {
        let index_size = match self {
            Self::List(list) => list.urls.capacity() + list.entries.capacity() * size_of::<Entry>(),
            Self::Numbered { template, .. } => template.memory_size(),
            Self::Timeline { template, timeline, .. } => {
                // A shared timeline is divided among its users.
                template.memory_size() + timeline.memory_size() / Arc::strong_count(timeline).max(1)
            }
        };
        index_size + size_of::<Rendition>()
    }
}

impl SegmentUrls {
    /// Appends a segment.
    pub(crate) fn push(&mut self, url: &Url, range: Option<Range<u64>>, duration: Duration) {
        self.urls.push_str(url.as_str());
        self.entries.push(Entry { hash: url_hash(url), url_end: self.urls.len(), range, duration });
    }

    /// The memory of one more segment, in bytes.
    pub(crate) fn entry_size(url: &Url) -> usize {
        url.as_str().len() + size_of::<Entry>()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The range of the last segment, if it has this URL.
    pub(crate) fn last_range(&self, url: &Url) -> Option<Range<u64>> {
        let position = self.entries.len().checked_sub(1)?;
        self.entries.get(position).filter(|_| self.url(position) == Some(url.as_str()))?.range.clone()
    }

    /// Frees unused capacity.
    pub(crate) fn shrink(mut self) -> Self {
        self.urls.shrink_to_fit();
        self.entries.shrink_to_fit();
        self
    }

    fn url(&self, position: usize) -> Option<&str> {
        let start = position
            .checked_sub(1)
            .map_or(Some(0), |previous| self.entries.get(previous).map(|entry| entry.url_end))?;
        self.urls.get(start..self.entries.get(position)?.url_end)
    }

    fn position(&self, url: &Url, range: Option<&Range<u64>>) -> Option<usize> {
        let wanted_hash = url_hash(url);
        let matches = |(at, entry): (usize, &Entry)| {
            entry.hash == wanted_hash && entry.range.as_ref() == range && self.url(at) == Some(url.as_str())
        };
        self.entries.iter().enumerate().position(matches)
    }

    fn segment(&self, position: usize) -> Option<MediaSegment> {
        let Entry { range, duration, .. } = self.entries.get(position)?;
        Some(MediaSegment { url: Url::parse(self.url(position)?).ok()?, range: range.clone(), duration: *duration })
    }
}

impl SegmentTemplate {
    /// The number in a URL that matches the template.
    fn number(&self, url: &Url) -> Option<u64> {
        let digits = url.as_str().strip_prefix(self.prefix.as_str())?.strip_suffix(self.suffix.as_str())?;
        let is_number = digits.len() >= self.min_digits && digits.bytes().all(|byte| byte.is_ascii_digit());
        if is_number { digits.parse().ok() } else { None }
    }

    fn url(&self, number: u64) -> Option<Url> {
        let Self { prefix: before, suffix: after, min_digits: width } = self;
        Url::parse(&format!("{before}{number:0width$}{after}", width = *width)).ok()
    }

    pub(crate) fn memory_size(&self) -> usize {
        self.prefix.capacity() + self.suffix.capacity()
    }
}

impl SegmentTimeline {
    /// Appends a run of `count` segments that begins at time `start`.
    pub(crate) fn push(&mut self, start: u64, ticks: u64, count: u64) {
        let index = self.runs.last().map_or(0, |run| run.first_index.saturating_add(run.count));
        self.runs.push(TimelineRun {
            start,
            ticks: ticks.max(1),
            count,
            first_index: index,
            ticks_before: self.total_ticks,
        });
        self.total_ticks = self.total_ticks.saturating_add(ticks.saturating_mul(count));
    }

    pub(crate) fn memory_size(&self) -> usize {
        self.runs.capacity() * size_of::<TimelineRun>()
    }

    /// The memory of one run, in bytes.
    pub(crate) fn run_size() -> usize {
        size_of::<TimelineRun>()
    }

    /// The segment with this start time, or with this number if the first one has number `first`.
    fn find(&self, value: u64, by_time: bool, first: u64) -> Option<TimelineSegment> {
        if !by_time {
            return self.at(value.checked_sub(first)?);
        }
        let run = self.runs.get(self.runs.partition_point(|run| run.start <= value).checked_sub(1)?)?;
        let offset = value.checked_sub(run.start)?;
        let is_start = offset.is_multiple_of(run.ticks) && offset / run.ticks < run.count;
        self.at(run.first_index.checked_add(offset / run.ticks)?).filter(|_| is_start)
    }

    fn at(&self, index: u64) -> Option<TimelineSegment> {
        let run = self.runs.get(self.runs.partition_point(|run| run.first_index <= index).checked_sub(1)?)?;
        let offset = index.checked_sub(run.first_index).filter(|within| *within < run.count)?;
        let start = run.start.checked_add(run.ticks.checked_mul(offset)?)?;
        let end_ticks = run.ticks_before.saturating_add(run.ticks.saturating_mul(offset + 1));
        Some(TimelineSegment { index, start, ticks: run.ticks, end_ticks })
    }
}

/// Converts ticks to a duration.
pub(crate) fn ticks_to_duration(ticks: u64, timescale: u64) -> Duration {
    Duration::try_from_secs_f64(ticks as f64 / timescale.max(1) as f64).unwrap_or_default()
}

fn url_hash(url: &Url) -> u64 {
    let mut hasher = DefaultHasher::new();
    url.as_str().hash(&mut hasher);
    hasher.finish()
}

/// Limit for all renditions of one playlist together. Our choice: eleven hours in segments of two seconds.
pub(crate) const MAX_SEGMENTS: usize = 20_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    fn urls_after(index: &SegmentIndex, first_url: &str, max: usize) -> Option<Vec<String>> {
        let next = index.after(&url(first_url), None, max)?;
        Some(next.iter().map(|piece| piece.url.as_str().to_owned()).collect())
    }

    /// `https://h/v-NNN.m4s`
    fn template() -> SegmentTemplate {
        SegmentTemplate { prefix: "https://h/v-".to_owned(), suffix: ".m4s".to_owned(), min_digits: 3 }
    }

    #[test]
    fn following_numbers_keep_their_leading_zeros() {
        let index = SegmentIndex::Numbered {
            template: template(),
            last_number: Some(10),
            duration: Duration::from_secs(2),
        };
        let after = |url| urls_after(&index, url, 2);
        assert_eq!(after("https://h/v-008.m4s").unwrap(), ["https://h/v-009.m4s", "https://h/v-010.m4s"]);
        assert_eq!(after("https://h/v-010.m4s").unwrap(), [""; 0]);
        let rendition = Rendition { set: 0, index: index.clone(), is_final: true };
        let timing = rendition.timing(&url("https://h/v-007.m4s"), None);
        assert_eq!(
            timing,
            Some(SegmentTiming { duration: Duration::from_secs(2), time_left: Some(Duration::from_secs(6)) })
        );
        for other in ["https://h/v-8.m4s", "https://h/v-+08.m4s", "https://h/w-008.m4s", "https://h/v-008.mp4"] {
            assert_eq!(after(other), None, "{other}");
        }
    }

    #[test]
    fn segments_of_a_timeline_are_found_by_time_and_by_number() {
        let mut timeline = SegmentTimeline::default();
        timeline.push(100, 20, 2);
        timeline.push(150, 30, 1);
        let timed = |by_time| SegmentIndex::Timeline {
            template: template(),
            by_time,
            first_number: 7,
            timeline: Arc::new(timeline.clone()),
            timescale: 10,
        };
        let by_time = timed(true);
        assert_eq!(
            urls_after(&by_time, "https://h/v-100.m4s", 9).unwrap(),
            ["https://h/v-120.m4s", "https://h/v-150.m4s"]
        );
        assert_eq!(urls_after(&by_time, "https://h/v-110.m4s", 9), None);
        assert_eq!(urls_after(&by_time, "https://h/v-140.m4s", 9), None);
        let by_number = timed(false);
        assert_eq!(
            urls_after(&by_number, "https://h/v-007.m4s", 9).unwrap(),
            ["https://h/v-008.m4s", "https://h/v-009.m4s"]
        );
        assert_eq!(urls_after(&by_number, "https://h/v-006.m4s", 9), None);
        let rendition = Rendition { set: 0, index: by_time, is_final: true };
        let timing = rendition.timing(&url("https://h/v-120.m4s"), None).unwrap();
        assert_eq!(
            timing,
            SegmentTiming { duration: Duration::from_secs(2), time_left: Some(Duration::from_secs(3)) }
        );
    }

    #[test]
    fn an_endless_timeline_takes_little_memory() {
        let mut timeline = SegmentTimeline::default();
        timeline.push(u64::MAX - 5, 2, u64::MAX);
        timeline.push(0, u64::MAX, u64::MAX);
        assert!(timeline.at(3).is_none() && timeline.at(1).is_some());
        assert!(timeline.memory_size() < 1000);
    }

    #[test]
    fn segments_of_a_list_are_found_by_url_and_range() {
        let mut list = SegmentUrls::default();
        let all = url("https://h/all.ts");
        list.push(&all, Some(0..10), Duration::from_secs(1));
        assert_eq!((list.last_range(&all), list.last_range(&url("https://h/b.ts"))), (Some(0..10), None));
        list.push(&all, Some(10..20), Duration::from_secs(2));
        list.push(&url("https://h/b.ts"), None, Duration::from_secs(3));
        let index = SegmentIndex::List(list.shrink());
        let next = index.after(&all, Some(&(0..10)), 5).unwrap();
        assert_eq!(
            next[0],
            MediaSegment { url: all.clone(), range: Some(10..20), duration: Duration::from_secs(2) }
        );
        assert_eq!((next.len(), next[1].url.as_str()), (2, "https://h/b.ts"));
        assert_eq!(index.after(&all, None, 5), None);
        assert_eq!(index.after(&next[1].url, None, 5), Some(Vec::new()));
        assert!(index.memory_size() > 3 * size_of::<Entry>());
    }
}
