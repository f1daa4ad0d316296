//! Rewriting of `rtsp://` URLs in headers and descriptions, so that the player's next request comes to this process.

/// Replaces `rtsp://from` by `rtsp://to` in a text. `from` and `to` are authorities (`host:port`); a longer host or port that only
/// begins with `from` stays.
pub fn replace_authority(text: &str, from: &str, to: &str) -> String {
    let (scheme, mut remaining, mut out) = ("rtsp://", text, String::new());
    while let Some(at) = remaining.find(scheme) {
        let (before, after) = remaining.split_at(at + scheme.len());
        out += before;
        let ends_at_boundary =
            |tail: &str| !tail.starts_with(|c: char| c.is_ascii_alphanumeric() || "-.:@".contains(c));
        match after.strip_prefix(from).filter(|tail| ends_at_boundary(tail)) {
            Some(tail) => {
                out += to;
                remaining = tail;
            }
            None => remaining = after,
        }
    }
    out + remaining
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_given_authority_is_replaced() {
        let text = "url=rtsp://cam:554/a,rtsp://cam:5541/b;rtsp://cam:554";
        assert_eq!(
            replace_authority(text, "cam:554", "127.0.0.1:8554"),
            "url=rtsp://127.0.0.1:8554/a,rtsp://cam:5541/b;rtsp://127.0.0.1:8554"
        );
        assert_eq!(replace_authority("rtsp://camera/", "cam", "x"), "rtsp://camera/");
    }
}
