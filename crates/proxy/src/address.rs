//! Addresses in playlists and manifests: what a reference means, and what must stand in its place for a player that reaches
//! everything through the proxy.
//!
//! An address is changed only if the player would otherwise request something else than the list means. Relative ones
//! mostly stay: fewer changes, fewer surprises.

use url::Url;

use super::cost::{Cost, LONGEST_ADDRESS, LONGEST_EXPANDED, ListError};
use super::marks::{self, Form};
use super::{data_url, target};

/// Where a playlist or manifest came from, and where the player believes it to be.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Behind all redirects.
    pub(super) origin: Url,
    /// The address at the proxy that the player asked for.
    pub(super) player: Url,
    /// What stands before a URL at the proxy: `http://127.0.0.1:8480/`.
    pub(super) via: String,
    /// What stands before a URL that the list names ([`marks`]).
    pub(super) mark: &'static str,
    /// The host that the player has named itself, whose URLs need no mark; none: a list has named it.
    pub(super) own: Option<String>,
}

/// What becomes of a reference.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Address {
    /// It leads the player to the right place.
    Stays,
    /// This must stand in its place.
    Other(String),
    /// It is none that the proxy understands.
    Unread,
}

impl Place {
    /// The same within another base of the same document.
    ///
    /// # Errors
    /// It costs too much.
    pub(super) fn based(&self, reference: &str, cost: &mut Cost) -> Result<Option<Self>, ListError> {
        // Every address below it would be as long as this one.
        if reference.len() > LONGEST_EXPANDED {
            return Ok(None);
        }
        let moved = match self.moved(reference, cost)? {
            Address::Other(moved) => Url::parse(&moved).ok(),
            Address::Stays | Address::Unread => None,
        };
        let origin = self.origin.join(reference).ok();
        let player = moved.or_else(|| self.player.join(reference).ok());
        Ok(origin.zip(player).map(|(origin, player)| Self { origin, player, ..self.clone() }))
    }

    /// What a reference means, without a login: as the proxy knows its resources. None: it is no URL, or too long to be
    /// fetched ahead.
    ///
    /// # Errors
    /// It costs too much.
    pub(super) fn resource(&self, reference: &str, cost: &mut Cost) -> Result<Option<Url>, ListError> {
        cost.work(self.weight(reference))?;
        if reference.len() > LONGEST_EXPANDED {
            return Ok(None);
        }
        let Ok(mut url) = self.origin.join(reference) else { return Ok(None) };
        let _ = url.set_username("");
        let _ = url.set_password(None);
        url.set_fragment(None);
        Ok(Some(url).filter(|url| url.as_str().len() <= LONGEST_EXPANDED))
    }

    /// What must stand in the place of a reference.
    ///
    /// # Errors
    /// It costs too much.
    pub(super) fn moved(&self, reference: &str, cost: &mut Cost) -> Result<Address, ListError> {
        let is_data = reference.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"));
        if is_data {
            cost.work(reference.len().min(data_url::MOST))?;
            if data_url::holds_a_list(reference) {
                // Its addresses would be read by the player alone.
                return Ok(Address::Other(NO_DATA.to_owned()));
            }
        }
        if reference.len() > LONGEST_ADDRESS || has_other_scheme(reference) {
            cost.work(reference.len().min(LONGEST_SCHEME))?;
            return Ok(Address::Unread);
        }
        cost.work(2 * self.weight(reference))?;
        let Ok(mut meant) = self.origin.join(reference) else { return Ok(Address::Unread) };
        if !matches!(meant.scheme(), "http" | "https") {
            return Ok(Address::Unread);
        }
        cost.named.add(&meant);
        if meant.username().is_empty() && meant.origin() == self.origin.origin() {
            // The login with which the player came, for all that is of the same host.
            let _ = meant.set_username(self.origin.username());
            let _ = meant.set_password(self.origin.password());
        }
        let is_own = self.own.is_some() && self.own.as_deref() == meant.host_str();
        let right = format!("{}{}{meant}", self.via, if is_own { "" } else { self.mark });
        let taken = self.player.join(reference).ok();
        if taken.as_ref().map(Url::as_str) == Some(right.as_str()) {
            return Ok(Address::Stays);
        }
        // A program that does not follow the address as it stands now would request something else of the proxy.
        if let Some(taken) = taken.filter(|taken| taken.origin() == self.player.origin())
            && taken.path().get(1..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("http"))
            && let Ok(target) = target::parse(taken.path())
            && target.url.host() != meant.host()
            && target.url.host_str() != self.own.as_deref()
        {
            cost.named.add_unread(&target.url);
        }
        Ok(Address::Other(right))
    }

    /// Writes text that the proxy does not take for an address, so that no player is led around the mark by it. How many
    /// marks it needed.
    ///
    /// # Errors
    /// It costs too much.
    pub(super) fn write_unread(
        &self,
        out: &mut String,
        text: (&str, Form),
        cost: &mut Cost,
    ) -> Result<usize, ListError> {
        let (text, count) = marks::marked(text, self.mark, self.authority(), cost)?;
        cost.write(out, &text)?;
        Ok(count)
    }

    /// A value that the proxy does not take for an address, with the marks that it needs; none: it needs none.
    ///
    /// # Errors
    /// It costs too much.
    pub(super) fn marked(&self, value: &str, cost: &mut Cost) -> Result<Option<String>, ListError> {
        cost.work(value.len())?;
        let (text, count) = marks::marked((value, Form::Value), self.mark, self.authority(), cost)?;
        Ok((count > 0).then(|| text.into_owned()))
    }

    /// The proxy's address and port, as the player writes them.
    fn authority(&self) -> &str {
        self.via.trim_start_matches("http://").split('/').next().unwrap_or_default()
    }

    /// The bytes that are touched when a reference is resolved.
    fn weight(&self, reference: &str) -> usize {
        self.origin.as_str().len() + self.player.as_str().len() + reference.len() + RESOLVE
    }
}

/// Whether a reference is of a scheme that is not played over HTTP (RFC 3986 section 3.1). Such a one may be long: the
/// content of a `data:` address is in the address.
fn has_other_scheme(reference: &str) -> bool {
    let Some((scheme, _)) = reference.split_once(':') else { return false };
    let is_scheme = scheme.len() <= LONGEST_SCHEME
        && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    is_scheme && !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https")
}

/// Resolving even an empty reference takes some work.
const RESOLVE: usize = 64;
const LONGEST_SCHEME: usize = 64;
/// In the place of a list within a `data:` URL.
const NO_DATA: &str = "data:,";

#[cfg(test)]
pub(super) mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    pub(in super::super) const VIA: &str = "http://127.0.0.1:8480/";

    /// What costs no more than any list may.
    pub(in super::super) fn affordable() -> Cost {
        Cost::new(1 << 20, u64::MAX, Instant::now() + Duration::from_secs(600))
    }

    pub(in super::super) fn place(asked: &str, origin: &str) -> Place {
        let player = Url::parse(&format!("{VIA}{asked}")).unwrap();
        let origin = Url::parse(origin).unwrap();
        let own = Url::parse(asked).unwrap().host_str().map(str::to_owned);
        Place { origin, player, via: VIA.to_owned(), mark: "from-list/", own }
    }

    pub(in super::super) fn at(url: &str) -> Place {
        place(url, url)
    }

    fn moved(place: &Place, reference: &str) -> Option<String> {
        match place.moved(reference, &mut affordable()).unwrap() {
            Address::Other(moved) => Some(moved),
            Address::Stays | Address::Unread => None,
        }
    }

    #[test]
    fn a_player_stays_with_the_proxy_whatever_the_form_of_an_address() {
        let place = at("https://h/a/b/list.m3u8?x=1");
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
            // More steps up than there are: the origin stops at its root, the proxy's address would lose the host.
            ("../../../../x.ts", Some("https://h/x.ts")),
            ("data:text/plain,x", None),
            ("skd://key", None),
            ("data:text/plain;base64,MDEyMzQ1Njc4OWFiY2RlZg==", None),
            ("seg:1.ts", None),
        ] {
            assert_eq!(moved(&place, reference), to.map(|url| format!("{VIA}{url}")), "{reference}");
        }
    }

    #[test]
    fn a_list_within_an_address_reaches_no_player() {
        let place = at("https://h/list.m3u8");
        assert_eq!(moved(&place, "data:,%23EXTM3U%0Ahttp://127.0.0.1:8480/http:%2F/10.0.0.1/x").unwrap(), NO_DATA);
    }

    #[test]
    fn a_login_goes_with_everything_of_its_host_and_nothing_else() {
        let place = at("https://me:pw@h/a/list.m3u8");
        assert_eq!(moved(&place, "seg.ts"), None);
        assert_eq!(moved(&place, "/seg.ts").unwrap(), format!("{VIA}https://me:pw@h/seg.ts"));
        assert_eq!(moved(&place, "https://cdn/seg.ts").unwrap(), format!("{VIA}from-list/https://cdn/seg.ts"));
        let resource = place.resource("/seg.ts#x", &mut affordable()).unwrap();
        assert_eq!(resource.unwrap().as_str(), "https://h/seg.ts");
    }

    #[test]
    fn behind_a_redirect_relative_addresses_are_of_the_place_it_led_to() {
        let other = place("https://h/live", "https://edge.example/1/list.m3u8");
        assert_eq!(moved(&other, "seg.ts").unwrap(), format!("{VIA}from-list/https://edge.example/1/seg.ts"));
        let within = place("https://h/old/list.m3u8", "https://h/old/other.m3u8");
        assert_eq!(moved(&within, "seg.ts"), None);
    }

    #[test]
    fn addresses_that_no_request_could_name_stay_and_data_may_be_long() {
        let place = at("https://h/a/list.m3u8");
        let long = "x".repeat(LONGEST_ADDRESS);
        assert!(moved(&place, &format!("/{}", &long[1..])).is_some());
        assert_eq!(moved(&place, &format!("/{long}")), None);
        let mut cost = affordable();
        for _ in 0..10_000 {
            assert_eq!(place.moved(&format!("data:,{long}"), &mut cost).unwrap(), Address::Unread);
        }
        let resource = |len| place.resource(&long[..len], &mut affordable()).unwrap();
        assert!(resource(LONGEST_EXPANDED - 100).is_some() && resource(LONGEST_EXPANDED).is_none());
    }

    #[test]
    fn a_long_base_makes_every_reference_dear() {
        let place = at(&format!("https://h/{}/list.m3u8", "x".repeat(60_000)));
        let mut cost = affordable();
        assert!((0..10_000).any(|_| place.moved("a.ts", &mut cost).is_err()));
    }
}
