//! Hint for failed downloads when the variable `HTTP_PROXY` is set but ignored.
//!
//! As in curl, `HTTP_PROXY` is not read: in a CGI program it would be a header field of the client. On a host that reaches
//! the network only through a proxy, all connections then time out, so the error names the variable. The value is not
//! printed, since it may contain a password.

use marline_download::DownloadErrorKind;

/// Hint to append to the error of a failed download. Empty unless `HTTP_PROXY` alone is set and the network failed.
pub(super) fn hint(kind: DownloadErrorKind, url: &str, variable: impl Fn(&str) -> Option<String>) -> &'static str {
    let is_of_network =
        matches!(kind, DownloadErrorKind::Network | DownloadErrorKind::NoLink | DownloadErrorKind::TimeLimit);
    let is_set = |name: &str| variable(name).is_some_and(|value| !value.trim().is_empty());
    let has_other = ["http_proxy", "all_proxy", "ALL_PROXY"].into_iter().any(is_set);
    if is_of_network && url.starts_with("http://") && is_set("HTTP_PROXY") && !has_other {
        return "; HTTP_PROXY is set but ignored: set http_proxy in lower case, or use -x";
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_proxy_variable_is_named_when_the_network_fails() {
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
