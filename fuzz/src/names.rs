//! Names: of files, as a server proposes them, and of hosts, as DNS answers for them.

use marline_net::fuzzing;
use marline_download::file_name;
use url::Url;

/// A Content-Disposition, and behind its first line end the path of a URL.
pub fn file(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (field, path) = text.split_once('\n').unwrap_or((&text, ""));
    for url in [format!("http://host/{path}"), path.to_owned()] {
        let Ok(url) = Url::parse(&url) else { continue };
        assert_is_a_name(&file_name(Some(field), &url));
        assert_is_a_name(&file_name(None, &url));
    }
}

/// A name, and nothing but a name.
pub(crate) fn assert_is_a_name(name: &str) {
    assert!(!name.is_empty() && name.len() <= 255, "{name:?} has {} bytes", name.len());
    assert!(!name.starts_with(['.', '-', '~']), "{name:?} hides, or is an option");
    assert!(!name.to_lowercase().ends_with(".part"), "{name:?} is an unfinished file's");
    assert!(!name.contains(['/', '\\']) && !name.chars().any(char::is_control), "{name:?} is more than a name");
    assert_eq!(name.trim(), name, "blanks around a name");
}

/// The name that is asked for in [`dns_reply`].
const ASKED: &str = "www.example.org";

/// A message that claims to answer our question; its number is always right. Whatever it says, addresses are of the
/// family that was asked for.
pub fn dns_reply(bytes: &[u8]) {
    let id = bytes.first_chunk().map_or(0, |number| u16::from_be_bytes(*number));
    for v6 in [false, true] {
        let Some(Some(addresses)) = fuzzing::dns_reply(bytes, id, ASKED, v6) else { continue };
        assert!(addresses.len() <= bytes.len() / 12, "more addresses than the bytes can hold");
        assert!(addresses.iter().all(|address| address.is_ipv6() == v6), "of another family: {addresses:?}");
    }
}

/// A name to ask for: what can be asked is a message, and its echo is an answer to it.
pub fn dns_question(bytes: &[u8]) {
    let name = String::from_utf8_lossy(bytes);
    for v6 in [false, true] {
        let Some(mut message) = fuzzing::dns_question(7, &name, v6) else { continue };
        assert!(message.len() <= 512, "{} bytes", message.len());
        message[2] |= 0x80;
        assert_eq!(fuzzing::dns_reply(&message, 7, &name, v6), Some(Some(Vec::new())), "{name}");
        assert_eq!(fuzzing::dns_reply(&message, 8, &name, v6), None, "{name}");
    }
}
