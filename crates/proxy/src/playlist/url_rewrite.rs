//! Rewrites URLs in playlists and manifests for a player that reaches everything through the proxy.
//!
//! A URL is changed only if the player would otherwise request something else than the playlist means. Most relative
//! URLs stay, which keeps the changes to a minimum.

use url::Url;

use super::data_url;
use super::marks::{self, TextForm};
use super::parse_budget::{MAX_EXPANDED_URL, MAX_URL, ParseBudget, PlaylistError};
use crate::client::media_url;

/// Where a playlist or manifest came from, and under which URL the player knows it.
#[derive(Clone, Debug)]
pub(crate) struct RewriteContext {
    /// The URL after all redirects.
    pub(crate) source_url: Url,
    /// The URL at the proxy that the player requested.
    pub(crate) player_url: Url,
    /// The text before a URL at the proxy: `http://127.0.0.1:8480/`.
    pub(crate) proxy_prefix: String,
    /// The mark before URLs that the playlist names ([`marks`]).
    pub(crate) mark: &'static str,
    /// The host that the player itself has named, whose URLs need no mark; `None`: a playlist has named it.
    pub(crate) unmarked_host: Option<String>,
}

/// The result of rewriting a reference.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum RewriteResult {
    /// The player resolves it correctly.
    Unchanged,
    /// It must be replaced by this URL.
    Changed(String),
    /// It is no URL that the proxy supports.
    NotAUrl,
}

impl RewriteContext {
    /// The context below another base URL of the same document.
    ///
    /// # Errors
    /// The budget is exhausted.
    pub(crate) fn with_base(
        &self,
        reference: &str,
        budget: &mut ParseBudget,
    ) -> Result<Option<Self>, PlaylistError> {
        // Every URL below it would be as long as this one.
        if reference.len() > MAX_EXPANDED_URL {
            return Ok(None);
        }
        let replacement = match self.rewrite(reference, budget)? {
            RewriteResult::Changed(url) => Url::parse(&url).ok(),
            RewriteResult::Unchanged | RewriteResult::NotAUrl => None,
        };
        let origin = self.source_url.join(reference).ok();
        let player = replacement.or_else(|| self.player_url.join(reference).ok());
        Ok(origin.zip(player).map(|(origin, player)| Self {
            source_url: origin,
            player_url: player,
            ..self.clone()
        }))
    }

    /// Resolves a reference to a URL without a login, as the proxy identifies resources. `None`: it is no URL, or too
    /// long to be prefetched.
    ///
    /// # Errors
    /// The budget is exhausted.
    pub(crate) fn resolve(&self, reference: &str, budget: &mut ParseBudget) -> Result<Option<Url>, PlaylistError> {
        budget.charge_work(self.resolve_cost(reference))?;
        if reference.len() > MAX_EXPANDED_URL {
            return Ok(None);
        }
        let Ok(mut url) = self.source_url.join(reference) else { return Ok(None) };
        let _ = url.set_username("");
        let _ = url.set_password(None);
        url.set_fragment(None);
        Ok(Some(url).filter(|url| url.as_str().len() <= MAX_EXPANDED_URL))
    }

    /// Rewrites a reference.
    ///
    /// # Errors
    /// The budget is exhausted.
    pub(crate) fn rewrite(
        &self,
        reference: &str,
        budget: &mut ParseBudget,
    ) -> Result<RewriteResult, PlaylistError> {
        let is_data = reference.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"));
        if is_data {
            budget.charge_work(reference.len().min(data_url::MAX_SCANNED))?;
            if data_url::contains_playlist(reference) {
                // The player alone would parse the playlist in it, so its URLs could not be rewritten.
                return Ok(RewriteResult::Changed(EMPTY_DATA_URL.to_owned()));
            }
        }
        if reference.len() > MAX_URL || has_other_scheme(reference) {
            budget.charge_work(reference.len().min(MAX_SCHEME))?;
            return Ok(RewriteResult::NotAUrl);
        }
        budget.charge_work(2 * self.resolve_cost(reference))?;
        let Ok(mut absolute) = self.source_url.join(reference) else { return Ok(RewriteResult::NotAUrl) };
        if !matches!(absolute.scheme(), "http" | "https") {
            return Ok(RewriteResult::NotAUrl);
        }
        budget.urls.add(&absolute);
        if absolute.username().is_empty() && absolute.origin() == self.source_url.origin() {
            // The player's login applies to all URLs of the same origin.
            let _ = absolute.set_username(self.source_url.username());
            let _ = absolute.set_password(self.source_url.password());
        }
        let is_unmarked_host = self.unmarked_host.is_some() && self.unmarked_host.as_deref() == absolute.host_str();
        let expected = format!("{}{}{absolute}", self.proxy_prefix, if is_unmarked_host { "" } else { self.mark });
        let resolved = self.player_url.join(reference).ok();
        if resolved.as_ref().map(Url::as_str) == Some(expected.as_str()) {
            return Ok(RewriteResult::Unchanged);
        }
        // A program that resolves the original URL differently would request something else from the proxy.
        if let Some(url) = resolved.filter(|taken| taken.origin() == self.player_url.origin())
            && url.path().get(1..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("http"))
            && let Ok(proxied) = media_url::parse(url.path())
            && proxied.url.host() != absolute.host()
            && proxied.url.host_str() != self.unmarked_host.as_deref()
        {
            budget.urls.add_unparsed(&proxied.url);
        }
        Ok(RewriteResult::Changed(expected))
    }

    /// Writes text that the proxy does not parse as a URL, with the marks that it needs. Returns their number.
    ///
    /// # Errors
    /// The budget is exhausted.
    pub(crate) fn write_unparsed(
        &self,
        out: &mut String,
        text: (&str, TextForm),
        budget: &mut ParseBudget,
    ) -> Result<usize, PlaylistError> {
        let (text, count) = marks::mark_requests(text, self.mark, self.authority(), budget)?;
        budget.write(out, &text)?;
        Ok(count)
    }

    /// Inserts the necessary marks into a value that the proxy does not parse as a URL; `None`: it needs none.
    ///
    /// # Errors
    /// The budget is exhausted.
    pub(crate) fn mark_value(
        &self,
        value: &str,
        budget: &mut ParseBudget,
    ) -> Result<Option<String>, PlaylistError> {
        budget.charge_work(value.len())?;
        let (text, count) = marks::mark_requests((value, TextForm::Value), self.mark, self.authority(), budget)?;
        Ok((count > 0).then(|| text.into_owned()))
    }

    /// The proxy's host and port, as the player writes them.
    fn authority(&self) -> &str {
        self.proxy_prefix.trim_start_matches("http://").split('/').next().unwrap_or_default()
    }

    /// The number of bytes that are touched when a reference is resolved.
    fn resolve_cost(&self, reference: &str) -> usize {
        self.source_url.as_str().len() + self.player_url.as_str().len() + reference.len() + RESOLVE_COST
    }
}

/// Whether a reference has a scheme other than HTTP (RFC 3986 section 3.1). Such references may be long: a `data:` URL
/// contains the data.
fn has_other_scheme(reference: &str) -> bool {
    let Some((scheme, _)) = reference.split_once(':') else { return false };
    let is_scheme = scheme.len() <= MAX_SCHEME
        && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    is_scheme && !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https")
}

/// Work for resolving even an empty reference.
const RESOLVE_COST: usize = 64;
/// The longest scheme that is recognized, in bytes.
const MAX_SCHEME: usize = 64;
/// Replaces a `data:` URL that contains a playlist.
const EMPTY_DATA_URL: &str = "data:,";

#[cfg(test)]
pub(crate) mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    pub(crate) const PROXY_PREFIX: &str = "http://127.0.0.1:8480/";

    /// A budget that is sufficient for the tests.
    pub(crate) fn test_budget() -> ParseBudget {
        ParseBudget::new(1 << 20, u64::MAX, Instant::now() + Duration::from_secs(600))
    }

    pub(crate) fn context(requested: &str, origin: &str) -> RewriteContext {
        let player = Url::parse(&format!("{PROXY_PREFIX}{requested}")).unwrap();
        let origin = Url::parse(origin).unwrap();
        let host = Url::parse(requested).unwrap().host_str().map(str::to_owned);
        RewriteContext {
            source_url: origin,
            player_url: player,
            proxy_prefix: PROXY_PREFIX.to_owned(),
            mark: "from-list/",
            unmarked_host: host,
        }
    }

    pub(crate) fn same_url_context(url: &str) -> RewriteContext {
        context(url, url)
    }

    fn moved(context: &RewriteContext, reference: &str) -> Option<String> {
        match context.rewrite(reference, &mut test_budget()).unwrap() {
            RewriteResult::Changed(url) => Some(url),
            RewriteResult::Unchanged | RewriteResult::NotAUrl => None,
        }
    }

    #[test]
    fn urls_of_all_forms_lead_to_the_proxy() {
        let context = same_url_context("https://h/a/b/list.m3u8?x=1");
        for (reference, to) in [
            ("seg1.ts", None),
            ("seg1.ts?y=2", None),
            ("sub/seg1.ts", None),
            ("../c/seg1.ts", None),
            ("https://h/a/seg1.ts", Some("https://h/a/seg1.ts")),
            ("HTTPS://h/a/seg1.ts", Some("https://h/a/seg1.ts")),
            ("http://other:81/x", Some("from-list/http://other:81/x")),
            ("/root/seg1.ts", Some("https://h/root/seg1.ts")),
            ("//cdn.example/x", Some("from-list/https://cdn.example/x")),
            // More parent segments than exist: the origin's URL stops at its root, while the proxy's URL would lose the
            // host.
            ("../../../../x.ts", Some("https://h/x.ts")),
            ("data:text/plain,x", None),
            ("skd://key", None),
            ("data:text/plain;base64,MDEyMzQ1Njc4OWFiY2RlZg==", None),
            ("seg:1.ts", None),
        ] {
            assert_eq!(moved(&context, reference), to.map(|url| format!("{PROXY_PREFIX}{url}")), "{reference}");
        }
    }

    #[test]
    fn a_playlist_in_a_data_url_is_removed() {
        let context = same_url_context("https://h/list.m3u8");
        assert_eq!(
            moved(&context, "data:,%23EXTM3U%0Ahttp://127.0.0.1:8480/http:%2F/10.0.0.1/x").unwrap(),
            EMPTY_DATA_URL
        );
    }

    #[test]
    fn a_login_is_added_to_urls_of_its_origin_only() {
        let context = same_url_context("https://me:pw@h/a/list.m3u8");
        assert_eq!(moved(&context, "seg.ts"), None);
        assert_eq!(moved(&context, "/seg.ts").unwrap(), format!("{PROXY_PREFIX}https://me:pw@h/seg.ts"));
        assert_eq!(
            moved(&context, "https://cdn/seg.ts").unwrap(),
            format!("{PROXY_PREFIX}from-list/https://cdn/seg.ts")
        );
        let resource = context.resolve("/seg.ts#x", &mut test_budget()).unwrap();
        assert_eq!(resource.unwrap().as_str(), "https://h/seg.ts");
    }

    #[test]
    fn after_a_redirect_relative_urls_are_resolved_against_its_target() {
        let other = context("https://h/live", "https://edge.example/1/list.m3u8");
        assert_eq!(
            moved(&other, "seg.ts").unwrap(),
            format!("{PROXY_PREFIX}from-list/https://edge.example/1/seg.ts")
        );
        let within = context("https://h/old/list.m3u8", "https://h/old/other.m3u8");
        assert_eq!(moved(&within, "seg.ts"), None);
    }

    #[test]
    fn urls_too_long_to_request_stay_and_data_urls_may_be_long() {
        let context = same_url_context("https://h/a/list.m3u8");
        let long = "x".repeat(MAX_URL);
        assert!(moved(&context, &format!("/{}", &long[1..])).is_some());
        assert_eq!(moved(&context, &format!("/{long}")), None);
        let mut budget = test_budget();
        for _ in 0..10_000 {
            assert_eq!(context.rewrite(&format!("data:,{long}"), &mut budget).unwrap(), RewriteResult::NotAUrl);
        }
        let resource = |len| context.resolve(&long[..len], &mut test_budget()).unwrap();
        assert!(resource(MAX_EXPANDED_URL - 100).is_some() && resource(MAX_EXPANDED_URL).is_none());
    }

    #[test]
    fn a_long_base_makes_every_reference_expensive() {
        let context = same_url_context(&format!("https://h/{}/list.m3u8", "x".repeat(60_000)));
        let mut budget = test_budget();
        assert!((0..10_000).any(|_| context.rewrite("a.ts", &mut budget).is_err()));
    }
}
