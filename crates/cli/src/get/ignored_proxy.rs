//! A proxy variable that does not count.
//!
//! As with curl, `HTTP_PROXY` is not read: in a CGI program it is a header field of the client's. A machine that reaches
//! the network only through a proxy then gets nothing but timeouts, so the failure names the variable. Values are not
//! shown: they may hold a password.

use marline_download::DownloadErrorKind;

/// What to put behind the message of a failed download; nothing if no proxy is meant, or the network was not to blame.
pub(super) fn hint(kind: DownloadErrorKind, url: &str, variable: impl Fn(&str) -> Option<String>) -> &'static str {
    let is_of_network =
        matches!(kind, DownloadErrorKind::Network | DownloadErrorKind::NoLink | DownloadErrorKind::TimeLimit);
    let is_set = |name: &str| variable(name).is_some_and(|value| !value.trim().is_empty());
    let has_other = ["http_proxy", "all_proxy", "ALL_PROXY"].into_iter().any(is_set);
    if is_of_network && url.starts_with("http://") && is_set("HTTP_PROXY") && !has_other {
        return "; HTTP_PROXY is set and not used: write http_proxy in small letters, or -x";
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_does_not_count_is_named_when_the_network_fails() {
        let url = "http://h.test/f";
        for (kind, url, set, names) in [
            (DownloadErrorKind::Network, url, &["HTTP_PROXY"][..], true),
            (DownloadErrorKind::NoLink, url, &["HTTP_PROXY"], true),
            (DownloadErrorKind::TimeLimit, url, &["HTTP_PROXY"], true),
            (DownloadErrorKind::Http4xx, url, &["HTTP_PROXY"], false),
            (DownloadErrorKind::Network, url, &["HTTP_PROXY", "http_proxy"], false),
            (DownloadErrorKind::Network, url, &["HTTP_PROXY", "ALL_PROXY"], false),
            (DownloadErrorKind::Network, "https://h.test/f", &["HTTP_PROXY"], false),
            (DownloadErrorKind::Network, url, &[], false),
        ] {
            let variable = |name: &str| set.contains(&name).then(|| "http://me:secret@proxy".to_owned());
            let hint = hint(kind, url, variable);
            assert_eq!(hint.contains("HTTP_PROXY is set"), names, "{kind:?} {url} {set:?}");
            assert!(!hint.contains("secret"));
        }
    }
}
