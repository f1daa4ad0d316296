//! Blocking reloads of Low-Latency HLS (draft RFC 8216bis section 6.2.5): responses that a server delays on purpose.
//!
//! A player requests a playlist that does not exist yet (`_HLS_msn`, `_HLS_part`), and the server responds once it
//! does. Such a request may wait for up to three target durations. This delay does not indicate a bad link, so the
//! request is not repeated over another one meanwhile.

use std::time::Duration;

use url::Url;

/// Whether the server may delay its response to this request for a playlist.
pub(crate) fn is_blocking(url: &Url) -> bool {
    query_parameters(url).any(|part| parameter_name(part) == "_HLS_msn")
}

/// The URL of a playlist without delivery directives, which differ in each reload.
pub(crate) fn without_directives(url: &Url) -> Url {
    let mut url = url.clone();
    if query_parameters(&url).any(is_directive) {
        let parameters: Vec<&str> = query_parameters(&url).filter(|part| !is_directive(part)).collect();
        let query = (!parameters.is_empty()).then(|| parameters.join("&"));
        url.set_query(query.as_deref());
    }
    url
}

/// How long a server may delay a response if segments last at most `target`.
pub(crate) fn blocking_timeout(target: Option<Duration>) -> Duration {
    target.unwrap_or(DEFAULT_TARGET_DURATION).saturating_mul(3).clamp(MIN_TIMEOUT, MAX_TIMEOUT)
}

fn query_parameters(url: &Url) -> impl Iterator<Item = &str> {
    url.query().unwrap_or_default().split('&').filter(|part| !part.is_empty())
}

fn is_directive(part: &str) -> bool {
    parameter_name(part).starts_with("_HLS_")
}

fn parameter_name(part: &str) -> &str {
    part.split('=').next().unwrap_or_default()
}

/// The segment duration of Apple's HLS authoring specification.
const DEFAULT_TARGET_DURATION: Duration = Duration::from_secs(6);
/// The server's delay is extended by an RTT, name resolution and a handshake.
const MIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Our choice: a player has given up by then.
const MAX_TIMEOUT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delivery_directives_do_not_distinguish_playlists() {
        for (url, playlist, blocks) in [
            ("https://h/l.m3u8?_HLS_msn=7&_HLS_part=2", "https://h/l.m3u8", true),
            ("https://h/l.m3u8?a=%20b&_HLS_msn=7&c", "https://h/l.m3u8?a=%20b&c", true),
            ("https://h/l.m3u8?_HLS_skip=YES", "https://h/l.m3u8", false),
            ("https://h/l.m3u8?x_HLS_msn=1&_hls_msn=1", "https://h/l.m3u8?x_HLS_msn=1&_hls_msn=1", false),
            ("https://h/l.m3u8", "https://h/l.m3u8", false),
        ] {
            let url = Url::parse(url).unwrap();
            assert_eq!((without_directives(&url).as_str(), is_blocking(&url)), (playlist, blocks));
        }
    }

    #[test]
    fn the_timeout_is_three_target_durations() {
        assert_eq!(blocking_timeout(Some(Duration::from_secs(4))), Duration::from_secs(12));
        assert_eq!(blocking_timeout(None), Duration::from_secs(18));
        assert_eq!(
            (blocking_timeout(Some(Duration::ZERO)), blocking_timeout(Some(Duration::MAX))),
            (MIN_TIMEOUT, MAX_TIMEOUT)
        );
    }
}
