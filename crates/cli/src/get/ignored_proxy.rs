//! Hint for failed downloads when the environment variable `HTTP_PROXY` is set, which marline ignores.
//!
//! Like curl, marline reads `http_proxy` in lower case only. In a CGI program, `HTTP_PROXY` holds the request header
//! `Proxy`, so any client could set the proxy ("httpoxy", CVE-2016-5385). If a host reaches the network only through a
//! proxy and the variable is ignored, all connections time out. The hint therefore names the variable. It does not show
//! the value, which may contain a password.

use marline_download::DownloadErrorKind;

/// Hint to append to the error of a failed download. `variable` returns an environment variable. The hint is empty
/// unless the URL is `http:`, the cause is the network (no link, no connection, or the user's time limit), `HTTP_PROXY` is
/// set, and no variable is set that marline reads for such a URL (`http_proxy`, `all_proxy`, `ALL_PROXY`).
pub(super) fn hint(kind: DownloadErrorKind, url: &str, variable: impl Fn(&str) -> Option<String>) -> &'static str {
    let is_network_failure =
        matches!(kind, DownloadErrorKind::Network | DownloadErrorKind::NoLink | DownloadErrorKind::TimeLimit);
    let is_set = |name: &str| variable(name).is_some_and(|value| !value.trim().is_empty());
    let has_effective_proxy = ["http_proxy", "all_proxy", "ALL_PROXY"].into_iter().any(is_set);
    if is_network_failure && url.starts_with("http://") && is_set("HTTP_PROXY") && !has_effective_proxy {
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
        for (kind, url, set, is_hint_expected) in [
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
            assert_eq!(hint.contains("HTTP_PROXY is set"), is_hint_expected, "{kind:?} {url} {set:?}");
            assert!(!hint.contains("secret"));
        }
    }
}
