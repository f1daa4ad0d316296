//! Hint for failed downloads when the environment variable `HTTP_PROXY` is set, which marline ignores.
//!
//! Like curl, marline reads `http_proxy` in lower case only. In a CGI program, `HTTP_PROXY` holds the request header
//! `Proxy`, so any client could set the proxy ("httpoxy", CVE-2016-5385). If a host reaches the network only through a
//! proxy and the variable is ignored, all connections time out. The hint therefore names the variable. It does not show
//! the value, which may contain a password.

use marline_download::DownloadErrorKind;

/// Whether the environment names a proxy for `http:` URLs only in the variable that marline ignores.
#[derive(Clone, Copy, Debug)]
pub(super) struct IgnoredProxy(bool);

impl IgnoredProxy {
    /// Reads the environment with `variable`. `has_proxy_option`: `-x` was given and replaces all variables.
    pub(super) fn detect(has_proxy_option: bool, variable: impl Fn(&str) -> Option<String>) -> Self {
        let is_set = |name: &str| variable(name).is_some_and(|value| !value.trim().is_empty());
        let has_effective_proxy =
            has_proxy_option || ["http_proxy", "all_proxy", "ALL_PROXY"].into_iter().any(is_set);
        Self(is_set("HTTP_PROXY") && !has_effective_proxy)
    }

    /// Hint to append to the error of a failed download. It is empty unless the variable is ignored, the URL is `http:`
    /// and the cause is the network.
    pub(super) fn hint(self, kind: DownloadErrorKind, url: &str) -> &'static str {
        let is_network_failure =
            matches!(kind, DownloadErrorKind::Network | DownloadErrorKind::NoLink | DownloadErrorKind::TimeLimit);
        if self.0 && is_network_failure && url.starts_with("http://") {
            return "; HTTP_PROXY is set but ignored: set http_proxy in lower case, or use -x";
        }
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_proxy_variable_is_named_when_the_network_fails() {
        let url = "http://h.test/f";
        for (kind, url, variables, is_hint_expected) in [
            (DownloadErrorKind::Network, url, &["HTTP_PROXY"][..], true),
            (DownloadErrorKind::NoLink, url, &["HTTP_PROXY"], true),
            (DownloadErrorKind::TimeLimit, url, &["HTTP_PROXY"], true),
            (DownloadErrorKind::Http4xx, url, &["HTTP_PROXY"], false),
            (DownloadErrorKind::Network, url, &["HTTP_PROXY", "http_proxy"], false),
            (DownloadErrorKind::Network, url, &["HTTP_PROXY", "ALL_PROXY"], false),
            (DownloadErrorKind::Network, "https://h.test/f", &["HTTP_PROXY"], false),
            (DownloadErrorKind::Network, url, &[], false),
        ] {
            let variable = |name: &str| variables.contains(&name).then(|| "http://me:secret@proxy".to_owned());
            let hint = |has_option| IgnoredProxy::detect(has_option, variable).hint(kind, url);
            assert_eq!(hint(false).contains("HTTP_PROXY is set"), is_hint_expected, "{kind:?} {url} {variables:?}");
            assert!(!hint(false).contains("secret"));
            assert_eq!(hint(true), "", "with -x, also with an empty value, the variables do not matter");
        }
    }
}
