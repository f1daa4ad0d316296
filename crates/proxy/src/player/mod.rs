//! Players: the video that they play, and what they report about themselves.

pub(crate) mod container;
pub(crate) mod ffprobe;
pub(crate) mod mpv;
pub(crate) mod mpv_ipc;
pub(crate) mod playlist_playbacks;
pub(crate) mod report;
pub(crate) mod track_playback;
pub(crate) mod video_source;
