//! ffmpeg as a broadcaster: a moving test picture, H.264 and AAC at a constant rate, pushed by RTMP as it is made.
//!
//! In: where to, for how long, how many bits a second. Out: each packet as it left the encoder; what ffmpeg says of itself.
//!
//! 1. The same packets go to RTMP and, as FLV, to us (`-f tee`): first to us, so that a moment of ours is never later than
//!    the network's.
//! 2. The picture runs at the speed of a camera (`-re`) and the encoder looks ahead at nothing. When the network does not take
//!    what is made, ffmpeg waits: how far it then is behind the camera shows what a camera would have lost.
//! 3. The rate is constant (a coded picture that is too small is filled up), for the floors are about rates.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use marline_core::units::Bitrate;

use super::flv::FlvReader;
use super::packet_diff::TimedPacket;

/// What is sent.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct BroadcastConfig {
    pub(crate) length: Duration,
    /// Picture and sound together.
    pub(crate) rate: Bitrate,
}

/// Of the sound.
const AUDIO_RATE: u64 = 96_000;
/// chosen: a keyframe each two seconds, as streaming services ask for.
const KEYFRAME_INTERVAL: &str = "50";

/// ffmpeg's command, with `url` for RTMP; FLV comes on its standard output, its account goes to the file `progress`.
pub(crate) fn ffmpeg_command(config: BroadcastConfig, url: &str, progress: &Path) -> Command {
    let video_rate = config.rate.bits_per_sec().saturating_sub(AUDIO_RATE).max(AUDIO_RATE).to_string();
    // A quarter of a second of it: frames are of about one size.
    let buffer = (config.rate.bits_per_sec() / 4).to_string();
    let flv = "flv:flvflags=no_duration_filesize";
    let tee = format!("[f={flv}]pipe\\:1|[f={flv}]{}", url.replace(':', "\\:"));
    let mut command = Command::new("ffmpeg");
    command.args(["-hide_banner", "-nostdin", "-nostats", "-loglevel", "error", "-progress"]).arg(progress);
    command.args(["-re", "-f", "lavfi", "-i", "testsrc2=size=640x360:rate=25"]);
    command.args(["-re", "-f", "lavfi", "-i", "sine=frequency=440:sample_rate=44100"]);
    command.args(["-t", &format!("{:.3}", config.length.as_secs_f64()), "-map", "0:v", "-map", "1:a"]);
    command.args(["-c:v", "libx264", "-preset", "veryfast", "-tune", "zerolatency", "-pix_fmt", "yuv420p"]);
    command.args(["-g", KEYFRAME_INTERVAL, "-x264-params", "nal-hrd=cbr", "-threads", "1"]);
    command.args(["-b:v", &video_rate, "-minrate", &video_rate, "-maxrate", &video_rate, "-bufsize", &buffer]);
    command.args(["-c:a", "aac", "-b:a", &AUDIO_RATE.to_string(), "-flags", "+global_header"]);
    command.args(["-f", "tee", &tee]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Collects what ffmpeg makes, with the moment of each packet; the whole comes at its end.
pub(crate) fn collect_packets(
    mut output: impl Read + Send + 'static,
) -> Receiver<Result<Vec<TimedPacket>, String>> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let (mut reader, mut arrived, mut buffer) = (FlvReader::default(), Vec::new(), vec![0; 64 * 1024]);
        let result = loop {
            let length = match output.read(&mut buffer) {
                Ok(length) => length,
                Err(error) => break Err(error.to_string()),
            };
            let seen_at = Instant::now();
            reader.push(buffer.get(..length).unwrap_or_default());
            match reader.packets() {
                Ok(packets) => arrived.extend(packets.into_iter().map(|packet| TimedPacket { seen_at, packet })),
                Err(error) => break Err(error),
            }
            if length == 0 {
                break Ok(arrived);
            }
        };
        // Nobody waits any more: the run was given up.
        let _ = sender.send(result);
    });
    receiver
}

/// Frames that ffmpeg says it dropped, from its account; none: it has given none.
pub(crate) fn dropped_frames(progress: &str) -> Option<u64> {
    progress.lines().rev().find_map(|line| line.strip_prefix("drop_frames=")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_frames_are_those_of_the_last_report() {
        let progress = "frame=10\ndrop_frames=0\nprogress=continue\nframe=20\ndrop_frames=3\nprogress=end\n";
        assert_eq!(dropped_frames(progress), Some(3));
        assert_eq!((dropped_frames(""), dropped_frames("drop_frames=N/A\n")), (None, None));
    }

    #[test]
    fn the_rate_is_divided_among_picture_and_sound() {
        let show = BroadcastConfig { length: Duration::from_millis(1500), rate: Bitrate::from_mbps(5) };
        let command = ffmpeg_command(show, "rtmp://127.0.0.1/live/camera", Path::new("/tmp/p"));
        let args: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect();
        let after = |word: &str| args[args.iter().position(|arg| arg == word).unwrap() + 1].clone();
        assert_eq!((after("-b:v"), after("-t")), ("4904000".into(), "1.500".into()));
        assert!(args.last().unwrap().ends_with("]rtmp\\://127.0.0.1/live/camera"));
    }
}
