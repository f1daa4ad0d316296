//! What the proxy reads: addresses and ranges of players, SOCKS5 of programs, playlists and films of origins, and what
//! players say of themselves.

use marline_proxy::fuzzing::{self, List};

use crate::bytes::Bytes;

/// A path at the media port. What it means is a URL that can be asked for, and reads back as itself; how it is shown
/// tells nothing that is secret.
pub fn target(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Some((url, shown)) = fuzzing::proxy_target(text) else { return };
    assert!(
        matches!(url.scheme(), "http" | "https") && url.host_str().is_some_and(|host| !host.is_empty()),
        "{url}"
    );
    assert!(url.fragment().is_none() && url.username().is_empty() && url.password().is_none(), "{url}");
    let query = url.query().filter(|query| !query.is_empty());
    assert!(query.is_none_or(|query| !shown.contains(&format!("?{query}"))), "{shown} tells the query");
    let again = fuzzing::proxy_target(&format!("/{url}")).map(|(url, _)| url);
    assert_eq!(again.as_ref(), Some(&url), "`{url}` reads as another one");
}

/// Eight bytes of a size, then a Range field.
pub fn range(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let total = bytes.u64();
    for total in [total, total % 1000, 0] {
        if let Some(span) = fuzzing::proxy_range(bytes.0, total) {
            assert!(span.start < span.end && span.end <= total, "{span:?} of {total}");
        }
    }
}

/// A SOCKS5 client's first bytes.
pub fn socks(bytes: &[u8]) {
    let (heard, said) = fuzzing::proxy_socks(bytes);
    assert!(matches!(&said[..], [] | [5, 0] | [5, 0xff]), "{said:?}");
    if let Some(Ok((host, _))) = &heard {
        assert!(
            !host.is_empty() && host.len() <= 255 && host.bytes().all(|byte| byte.is_ascii_graphic()),
            "{host:?}"
        );
    }
    assert!(heard.is_none() || said == [5, 0], "asked before it was let in");
}

/// A playlist: what a player gets instead is one, too, with as many lines.
pub fn playlist(bytes: &[u8]) {
    list(bytes, fuzzing::proxy_playlist, |text, other| {
        assert_eq!(other.lines().count(), text.lines().count(), "lines are lost or won");
    });
}

/// A manifest: what a player gets instead is one, too.
pub fn manifest(bytes: &[u8]) {
    list(bytes, fuzzing::proxy_manifest, |_, _| {});
}

fn list(bytes: &[u8], read: fn(&str) -> Option<List>, check: impl Fn(&str, &str)) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Some(List { text: other, moved, remembered, work, limit }) = read(text) else { return };
    let (len, lines) = (text.len(), text.lines().count());
    assert!(work <= 24 * len as u64 + (24 << 20), "{work} bytes were touched for {len}");
    assert!(remembered <= 5 << 20, "{remembered} bytes are remembered");
    assert!(limit.is_none() || other.is_none());
    let Some(other) = other else { return };
    assert!(moved > 0 || other == text, "nothing was moved, and it is another text");
    assert!(other.len() <= 3 * len + (4 << 20), "{} bytes of {len}", other.len());
    // Without variables each address becomes longer by a bounded amount, and a byte of it by two if it is percent-encoded.
    let longest = text.split(['\n', '"', '<']).map(str::len).max().unwrap_or(0);
    let each = 64 * longest + 300;
    assert!(
        text.contains("{$") || other.len() <= 3 * len + moved * each,
        "{} bytes of {len}, {lines} lines",
        other.len()
    );
    check(text, &other);
    let again = read(&other).is_some_and(|again| again.text.is_some());
    assert!(again, "what was written cannot be read: {other}");
}

/// A byte that chooses the coding, and a body. What comes out of its beginning is how all of it begins, within the bounds.
pub fn encoded(bytes: &[u8]) {
    const MOST: usize = 64 * 1024;
    let Some((choice, body)) = bytes.split_first() else { return };
    let encoding = ["gzip", "deflate", "br", "gzip, deflate", "br, gzip"][usize::from(*choice) % 5];
    if let Some(text) = fuzzing::proxy_encoded(body, encoding, MOST) {
        assert!(text.len() <= MOST, "{} bytes", text.len());
    }
}

/// The beginning of a film, and at its front eight bytes that say how long it is. It plays the same however it is cut.
pub fn container(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let total = bytes.u64();
    let whole = fuzzing::container(std::iter::once(bytes.0), total);
    for size in [1, 7, 1000] {
        let cut = fuzzing::container(bytes.0.chunks(size), total);
        assert_eq!(cut, whole, "another film in pieces of {size} bytes");
    }
    if let Some((profile, _)) = whole.0 {
        assert!(profile.size().bytes() > 0 && !profile.duration().is_zero());
        assert_eq!(profile.bytes_by(profile.duration()), profile.size().bytes());
    }
}

/// What a player page says of itself, and the same bytes as lines of mpv.
pub fn player(bytes: &[u8]) {
    let urls = [fuzzing::page_state(bytes), fuzzing::mpv_lines(String::from_utf8_lossy(bytes).lines())];
    for url in urls.into_iter().flatten() {
        assert!(matches!(url.scheme(), "http" | "https"), "{url}");
    }
}
