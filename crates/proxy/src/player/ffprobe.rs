//! Probes a file in an unsupported container with `ffprobe`, if that program is installed.
//!
//! It gets the head of the file, as the player has read it, and returns the duration or the bit rate.
//!
//! 1. It gets the head and no URL, so that nothing is requested twice and no login appears in a process list.
//! 2. It must not open files (`-protocol_whitelist pipe`): a head can be a playlist that names files of this machine.
//! 3. It runs for at most [`PROBE_TIMEOUT`], one process at a time, and its output is read up to [`MAX_OUTPUT`].

use std::process::Stdio;
use std::time::Duration;

use marline_core::units::Bitrate;
use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::container::VideoTiming;

/// The timing of a file with this head; `None`: `ffprobe` is not installed, or finds neither a duration nor a bit
/// rate.
pub(crate) async fn probe(head: Vec<u8>) -> Option<VideoTiming> {
    let _permit = PROBE_PERMIT.acquire().await.ok()?;
    timeout(PROBE_TIMEOUT, run(head)).await.ok()?
}

async fn run(head: Vec<u8>) -> Option<VideoTiming> {
    let mut child = Command::new("ffprobe")
        .args(["-v", "quiet", "-protocol_whitelist", "pipe", "-show_entries", "format=duration,bit_rate"])
        .args(["-of", "json", "-i", "pipe:0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .ok()?;
    let (mut stdin, mut stdout) = (child.stdin.take()?, child.stdout.take()?.take(MAX_OUTPUT));
    let write_head = async move {
        // ffprobe may close its input as soon as it has seen enough.
        let _ = stdin.write_all(&head).await;
    };
    let mut text = Vec::new();
    let ((), result) = tokio::join!(write_head, stdout.read_to_end(&mut text));
    result.ok()?;
    parse_output(&text)
}

fn parse_output(text: &[u8]) -> Option<VideoTiming> {
    let FormatInfo { duration, bit_rate } = serde_json::from_slice::<ProbeOutput>(text).ok()?.format;
    let seconds = duration.and_then(|value| value.parse::<f64>().ok()).filter(|seconds| *seconds > 0.0);
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let rate = bit_rate.and_then(|value| value.parse().ok()).map(Bitrate::from_bits_per_sec);
    duration.map(VideoTiming::Duration).or(rate.map(VideoTiming::Rate))
}

/// The part of ffprobe's JSON that is requested. It writes numbers as strings.
#[derive(Deserialize)]
struct ProbeOutput {
    format: FormatInfo,
}

#[derive(Deserialize)]
struct FormatInfo {
    duration: Option<String>,
    bit_rate: Option<String>,
}

static PROBE_PERMIT: Semaphore = Semaphore::const_new(1);
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// The requested part is about a hundred bytes of JSON.
const MAX_OUTPUT: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_preferred_to_a_rate_and_nonsense_is_ignored() {
        let parse = |format: &str| parse_output(format!("{{\"programs\":[],\"format\":{{{format}}}}}").as_bytes());
        let minute = Some(VideoTiming::Duration(Duration::from_secs(60)));
        assert_eq!(parse(r#""duration":"60.000000","bit_rate":"64000""#), minute);
        assert_eq!(parse(r#""bit_rate":"64000""#), Some(VideoTiming::Rate(Bitrate::from_bits_per_sec(64_000))));
        for json in ["", r#""duration":"N/A""#, r#""duration":"-1""#, r#""duration":"1e300""#] {
            assert_eq!(parse(json), None, "{json}");
        }
        assert_eq!(parse_output(b"{}"), None);
    }

    /// AU is the simplest container: a magic number and five integers.
    #[tokio::test]
    async fn a_head_suffices_and_other_files_yield_nothing() {
        if std::process::Command::new("ffprobe").arg("-version").stdout(Stdio::null()).status().is_err() {
            eprintln!("skipped: ffprobe is not installed");
            return;
        }
        let numbers = [24_u32, 1 << 30, 3, 8000, 2];
        let mut sound: Vec<u8> = b".snd".to_vec();
        sound.extend(numbers.iter().flat_map(|number| number.to_be_bytes()));
        sound.resize(200_000, 1);
        // 16 bits, two channels, 8000 times a second.
        let found = probe(sound).await;
        let plausible = match &found {
            Some(VideoTiming::Rate(rate)) => *rate == Bitrate::from_bits_per_sec(256_000),
            Some(VideoTiming::Duration(time)) => time.as_secs().abs_diff((1 << 30) / 32_000) < 2,
            _ => false,
        };
        assert!(plausible, "{found:?}");
        assert_eq!(probe(vec![0; 200_000]).await, None);
        let list = b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n/etc/passwd\n#EXT-X-ENDLIST\n".to_vec();
        assert!(!matches!(probe(list).await, Some(VideoTiming::Rate(_))));
    }
}
