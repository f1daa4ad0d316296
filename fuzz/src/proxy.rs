//! Inputs of the proxy: URLs and ranges from players, SOCKS5 requests, playlists, manifests and media from origin
//! servers, and reports of players.

use marline_proxy::fuzzing::{self, PlaylistReading};

use crate::bytes::Bytes;

/// A path at the media port. If it parses, its URL can be requested, has no credentials, and parses to itself again.
/// The text shown for it contains no query, because a query may be secret.
pub fn target(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Some((url, shown)) = fuzzing::proxy_target(text) else { return };
    assert!(
        matches!(url.scheme(), "http" | "https") && url.host_str().is_some_and(|host| !host.is_empty()),
        "{url}"
    );
    assert!(url.fragment().is_none() && url.username().is_empty() && url.password().is_none(), "{url}");
    let query = url.query().filter(|query| !query.is_empty());
    assert!(query.is_none_or(|query| !shown.contains(&format!("?{query}"))), "{shown} contains the query");
    let again = fuzzing::proxy_target(&format!("/{url}")).map(|(url, _)| url);
    assert_eq!(again.as_ref(), Some(&url), "`{url}` parses to another URL");
}

/// Eight bytes with the size of a resource, then a Range field.
pub fn range(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let total = bytes.u64();
    for total in [total, total % 1000, 0] {
        if let Some(range) = fuzzing::proxy_range(bytes.0, total) {
            assert!(range.start < range.end && range.end <= total, "{range:?} of {total}");
        }
    }
}

/// The first bytes of a SOCKS5 client.
pub fn socks(bytes: &[u8]) {
    let (request, replies) = fuzzing::proxy_socks(bytes);
    assert!(matches!(&replies[..], [] | [5, 0] | [5, 0xff]), "{replies:?}");
    if let Some(Ok((host, _))) = &request {
        assert!(
            !host.is_empty() && host.len() <= 255 && host.bytes().all(|byte| byte.is_ascii_graphic()),
            "{host:?}"
        );
    }
    assert!(request.is_none() || replies == [5, 0], "a request before the greeting was accepted");
}

/// An HLS playlist. Rewritten, it is still a playlist and has the same number of lines.
pub fn playlist(bytes: &[u8]) {
    check_rewrite(bytes, fuzzing::proxy_playlist, |text, rewritten| {
        assert_eq!(rewritten.lines().count(), text.lines().count(), "the number of lines has changed");
    });
}

/// A DASH manifest. Rewritten, it is still a manifest.
pub fn manifest(bytes: &[u8]) {
    check_rewrite(bytes, fuzzing::proxy_manifest, |_, _| {});
}

fn check_rewrite(bytes: &[u8], rewrite: fn(&str) -> Option<PlaylistReading>, check: impl Fn(&str, &str)) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Some(reading) = rewrite(text) else { return };
    let PlaylistReading { text: rewritten, changed_urls, index_bytes, work, limit } = reading;
    let (len, lines) = (text.len(), text.lines().count());
    assert!(work <= 24 * len as u64 + (24 << 20), "{work} bytes were touched for a text of {len}");
    assert!(index_bytes <= 5 << 20, "the index takes {index_bytes} bytes");
    assert!(limit.is_none() || rewritten.is_none());
    let Some(rewritten) = rewritten else { return };
    assert!(changed_urls > 0 || rewritten == text, "the text has changed, but no URL was counted");
    assert!(rewritten.len() <= 3 * len + (4 << 20), "{} bytes of {len}", rewritten.len());
    // Without variables each URL grows by a bounded amount, and each of its bytes by two if it is percent-encoded.
    let longest = text.split(['\n', '"', '<']).map(str::len).max().unwrap_or(0);
    let growth_per_url = 64 * longest + 300;
    assert!(
        text.contains("{$") || rewritten.len() <= 3 * len + changed_urls * growth_per_url,
        "{} bytes of {len}, {lines} lines",
        rewritten.len()
    );
    check(text, &rewritten);
    let parses_again = rewrite(&rewritten).is_some_and(|again| again.text.is_some());
    assert!(parses_again, "the rewritten text does not parse: {rewritten}");
}

/// A byte that selects the content coding, and a compressed body. The decoded body stays within its limit.
pub fn content_coding(bytes: &[u8]) {
    const LIMIT: usize = 64 * 1024;
    let Some((choice, body)) = bytes.split_first() else { return };
    let encoding = ["gzip", "deflate", "br", "gzip, deflate", "br, gzip"][usize::from(*choice) % 5];
    if let Some(text) = fuzzing::proxy_content_coding(body, encoding, LIMIT) {
        assert!(text.len() <= LIMIT, "{} bytes", text.len());
    }
}

/// Eight bytes with the size of a media file, then its beginning. The result must not depend on where the bytes are cut.
pub fn container(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let total = bytes.u64();
    let whole = fuzzing::proxy_container(std::iter::once(bytes.0), total);
    for size in [1, 7, 1000] {
        let pieces = fuzzing::proxy_container(bytes.0.chunks(size), total);
        assert_eq!(pieces, whole, "another result in pieces of {size} bytes");
    }
    if let Some((profile, _)) = whole.0 {
        assert!(profile.size().bytes() > 0 && !profile.duration().is_zero());
        assert_eq!(profile.bytes_at(profile.duration()), profile.size().bytes());
    }
}

/// A report of the player page, and the same bytes as lines of mpv's IPC protocol.
pub fn player(bytes: &[u8]) {
    let urls =
        [fuzzing::proxy_player_page_report(bytes), fuzzing::proxy_mpv_url(String::from_utf8_lossy(bytes).lines())];
    for url in urls.into_iter().flatten() {
        assert!(matches!(url.scheme(), "http" | "https"), "{url}");
    }
}
