//! ffmpeg as the broadcaster: a moving test picture as H.264 and AAC at a constant rate, pushed over RTMP while it
//! is encoded.
//!
//! 1. The same packets go to RTMP and, as FLV, to this program (`-f tee`). This program gets them first, so that
//!    its timestamp is never later than the transmission.
//! 2. The picture runs at camera speed (`-re`) and the encoder does not look ahead. When the network does not
//!    accept the data, ffmpeg blocks. Its lag behind the camera then shows what a real camera would have lost.
//! 3. The rate is constant (frames that are too small are padded), because the thresholds concern rates.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use marline_core::units::Bitrate;

use super::flv::FlvReader;
use super::packet_diff::TimedPacket;

/// Length and rate of a broadcast.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct BroadcastConfig {
    pub(crate) length: Duration,
    /// Rate of video and audio together.
    pub(crate) rate: Bitrate,
}

/// Rate of the audio in bit/s.
const AUDIO_RATE: u64 = 96_000;
/// Our choice: a keyframe every two seconds, as streaming services require.
const KEYFRAME_INTERVAL: &str = "50";

/// ffmpeg's command: RTMP goes to `url`, FLV to standard output, the progress report to the file `progress`.
pub(crate) fn ffmpeg_command(config: BroadcastConfig, url: &str, progress: &Path) -> Command {
    let video_rate = config.rate.bits_per_sec().saturating_sub(AUDIO_RATE).max(AUDIO_RATE).to_string();
    // A rate buffer of a quarter of a second keeps all frames at about the same size.
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

/// Collects the packets of ffmpeg with their times, in a thread; the receiver gets all of them at the end.
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
        // The receiver is gone if the run was given up.
        let _ = sender.send(result);
    });
    receiver
}

/// Number of frames that ffmpeg dropped, according to its progress report; `None` if there is none yet.
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
    fn the_rate_is_divided_between_video_and_audio() {
        let show = BroadcastConfig { length: Duration::from_millis(1500), rate: Bitrate::from_mbps(5) };
        let command = ffmpeg_command(show, "rtmp://127.0.0.1/live/camera", Path::new("/tmp/p"));
        let args: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect();
        let after = |option: &str| args[args.iter().position(|arg| arg == option).unwrap() + 1].clone();
        assert_eq!((after("-b:v"), after("-t")), ("4904000".into(), "1.500".into()));
        assert!(args.last().unwrap().ends_with("]rtmp\\://127.0.0.1/live/camera"));
    }
}
