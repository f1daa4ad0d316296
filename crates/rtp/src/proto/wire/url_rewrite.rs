//! Texts with another server's address in their URLs.

/// The text with `rtsp://to` wherever it has `rtsp://from`; `from` and `to` are hosts with their ports.
pub fn replace_authority(text: &str, from: &str, to: &str) -> String {
    let (scheme, mut rest, mut out) = ("rtsp://", text, String::new());
    while let Some(at) = rest.find(scheme) {
        let (before, after) = rest.split_at(at + scheme.len());
        out += before;
        let ends = |left: &str| !left.starts_with(|c: char| c.is_ascii_alphanumeric() || "-.:@".contains(c));
        match after.strip_prefix(from).filter(|left| ends(left)) {
            Some(left) => {
                out += to;
                rest = left;
            }
            None => rest = after,
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_moved_and_others_stay() {
        let text = "url=rtsp://cam:554/a,rtsp://cam:5541/b;rtsp://cam:554";
        assert_eq!(
            replace_authority(text, "cam:554", "127.0.0.1:8554"),
            "url=rtsp://127.0.0.1:8554/a,rtsp://cam:5541/b;rtsp://127.0.0.1:8554"
        );
        assert_eq!(replace_authority("rtsp://camera/", "cam", "x"), "rtsp://camera/");
    }
}
