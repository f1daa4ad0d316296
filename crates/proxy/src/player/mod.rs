//! Players that play over the proxy: the timing of the video that they play, how far each has played, and what they
//! report about themselves.
//!
//! Timing of a single file (its duration, or which bytes belong to which time): [`timing_finder`] examines the bytes that
//! pass, with the parsers for MP4, Matroska and MPEG-TS in [`container`], and [`ffprobe`] for all other formats.
//!
//! Playback of playlists: [`track_playback`] derives a player's position and buffer from the segments that it requests,
//! [`playlist_playbacks`] holds these states of all players.
//!
//! Reports: [`report`] holds what a player page or mpv reports; [`mpv_ipc`] reads mpv's IPC socket, [`mpv`] interprets
//! its messages. No player is started here.

pub(crate) mod container;
pub(crate) mod ffprobe;
pub(crate) mod mpv;
pub(crate) mod mpv_ipc;
pub(crate) mod playlist_playbacks;
pub(crate) mod report;
pub(crate) mod timing_finder;
pub(crate) mod track_playback;
