//! File names that a server proposes, and DNS queries and replies for host names.

use marline_download::file_name;
use marline_net::fuzzing;
use url::Url;

/// A Content-Disposition field, and after its first line end the path of a URL.
pub fn file(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (field, path) = text.split_once('\n').unwrap_or((&text, ""));
    for url in [format!("http://host/{path}"), path.to_owned()] {
        let Ok(url) = Url::parse(&url) else { continue };
        assert_is_valid_name(&file_name(Some(field), &url));
        assert_is_valid_name(&file_name(None, &url));
    }
}

/// Checks that the text is a file name without a path, and one that is safe to create.
pub(crate) fn assert_is_valid_name(name: &str) {
    assert!(!name.is_empty() && name.len() <= 255, "{name:?} has {} bytes", name.len());
    assert!(!name.starts_with(['.', '-', '~']), "{name:?} is a hidden file, an option or a home directory");
    assert!(!name.to_lowercase().ends_with(".part"), "{name:?} is the name of an incomplete download");
    assert!(
        !name.contains(['/', '\\']) && !name.chars().any(char::is_control),
        "{name:?} contains a separator or a control character"
    );
    assert_eq!(name.trim(), name, "a name with spaces around it");
}

/// The queried name of [`dns_reply`].
const QUERIED_NAME: &str = "www.example.org";

/// A message that claims to be the reply to our query; its ID is always correct. All addresses must be of the queried
/// family.
pub fn dns_reply(bytes: &[u8]) {
    let id = bytes.first_chunk().map_or(0, |number| u16::from_be_bytes(*number));
    for v6 in [false, true] {
        let Some(Some(addresses)) = fuzzing::dns_reply(bytes, id, QUERIED_NAME, v6) else { continue };
        assert!(addresses.len() <= bytes.len() / 12, "more addresses than fit into the bytes");
        assert!(addresses.iter().all(|address| address.is_ipv6() == v6), "of another family: {addresses:?}");
    }
}

/// A name to query. A query with the response bit set is a reply to itself, without addresses, and to no query with
/// another ID.
pub fn dns_question(bytes: &[u8]) {
    let name = String::from_utf8_lossy(bytes);
    for v6 in [false, true] {
        let Some(mut message) = fuzzing::dns_query(7, &name, v6) else { continue };
        assert!(message.len() <= 512, "{} bytes", message.len());
        message[2] |= 0x80;
        assert_eq!(fuzzing::dns_reply(&message, 7, &name, v6), Some(Some(Vec::new())), "{name}");
        assert_eq!(fuzzing::dns_reply(&message, 8, &name, v6), None, "{name}");
    }
}
