//! Finds the timing of a video (its duration, or the times of its bytes) while the bytes pass: in the container, or with
//! `ffprobe`.

use marline_core::playback::MediaProfile;
use marline_core::units::DataSize;

use super::container::{ContainerScan, VideoTiming};

/// What is known of a video; see the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct TimingFinder {
    scan: ContainerScan,
    /// The timing was found after the last [`take_profile`](Self::take_profile).
    is_new: bool,
}

impl TimingFinder {
    /// Examines bytes that the player reads.
    pub(crate) fn on_bytes_read(&mut self, offset: u64, bytes: &[u8]) {
        self.is_new |= self.scan.feed(offset, bytes);
    }

    /// The head of a file in an unsupported container, for another program to probe. Returned once.
    pub(crate) fn take_unknown_head(&mut self) -> Option<Vec<u8>> {
        self.scan.take_unknown_head()
    }

    /// Sets the timing of the video, as found by another source.
    pub(crate) fn set_video(&mut self, video: VideoTiming, source: &'static str) {
        self.scan.set_video(video, source);
        self.is_new = true;
    }

    /// The profile of a video of this size and its source, if it was found since the last call.
    pub(crate) fn take_profile(&mut self, total: DataSize) -> Option<(MediaProfile, &'static str)> {
        if !std::mem::take(&mut self.is_new) {
            return None;
        }
        let (video, source) = self.scan.video()?;
        Some((video.profile(total)?, source))
    }

    /// The offset at which the media data begin, once the duration of the video is known.
    pub(crate) fn media_start(&self, total: Option<DataSize>) -> Option<u64> {
        let (video, _) = self.scan.video()?;
        video.profile(total?)?;
        self.scan.media_start()
    }
}
