//! Addresses in playlists and manifests: what a reference means, and what must stand in its place for a player that reaches
//! everything through the proxy.
//!
//! An address is changed only if the player would otherwise request something else than the list means. Relative ones
//! mostly stay: fewer changes, fewer surprises.

use url::Url;

use super::cost::{Cost, LONGEST_ADDRESS, LONGEST_EXPANDED, ListError};

/// Where a playlist or manifest came from, and where the player believes it to be.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Behind all redirects.
    pub(super) origin: Url,
    /// The address at the proxy that the player asked for.
    pub(super) player: Url,
    /// What stands before a URL at the proxy: `http://127.0.0.1:8480/`.
    pub(super) via: String,
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
        let moved = self.moved(reference, cost)?.and_then(|moved| Url::parse(&moved).ok());
        let origin = self.origin.join(reference).ok();
        let player = moved.or_else(|| self.player.join(reference).ok());
        Ok(origin.zip(player).map(|(origin, player)| Self { origin, player, via: self.via.clone() }))
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

    /// The address that must stand in the place of a reference; none: it leads the player to the right place.
    ///
    /// # Errors
    /// It costs too much.
    pub(super) fn moved(&self, reference: &str, cost: &mut Cost) -> Result<Option<String>, ListError> {
        if reference.len() > LONGEST_ADDRESS || has_other_scheme(reference) {
            cost.work(reference.len().min(LONGEST_SCHEME))?;
            return Ok(None);
        }
        cost.work(2 * self.weight(reference))?;
        let Ok(mut meant) = self.origin.join(reference) else { return Ok(None) };
        if !matches!(meant.scheme(), "http" | "https") {
            return Ok(None);
        }
        cost.named.add(&meant);
        if meant.username().is_empty() && meant.origin() == self.origin.origin() {
            // The login with which the player came, for all that is of the same host.
            let _ = meant.set_username(self.origin.username());
            let _ = meant.set_password(self.origin.password());
        }
        let right = format!("{}{meant}", self.via);
        let taken = self.player.join(reference).ok();
        Ok((taken.as_ref().map(Url::as_str) != Some(right.as_str())).then_some(right))
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
        Place { origin: Url::parse(origin).unwrap(), player, via: VIA.to_owned() }
    }

    pub(in super::super) fn at(url: &str) -> Place {
        place(url, url)
    }

    fn moved(place: &Place, reference: &str) -> Option<String> {
        place.moved(reference, &mut affordable()).unwrap()
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
            ("http://other:81/x", Some("http://other:81/x")),
            ("/root/seg1.ts", Some("https://h/root/seg1.ts")),
            ("//cdn.example/x", Some("https://cdn.example/x")),
            // More steps up than there are: the origin stops at its root, the proxy's address would lose the host.
            ("../../../../x.ts", Some("https://h/x.ts")),
            ("data:text/plain,x", None),
            ("skd://key", None),
            ("seg:1.ts", None),
        ] {
            assert_eq!(moved(&place, reference), to.map(|url| format!("{VIA}{url}")), "{reference}");
        }
    }

    #[test]
    fn a_login_goes_with_everything_of_its_host_and_nothing_else() {
        let place = at("https://me:pw@h/a/list.m3u8");
        assert_eq!(moved(&place, "seg.ts"), None);
        assert_eq!(moved(&place, "/seg.ts").unwrap(), format!("{VIA}https://me:pw@h/seg.ts"));
        assert_eq!(moved(&place, "https://cdn/seg.ts").unwrap(), format!("{VIA}https://cdn/seg.ts"));
        let resource = place.resource("/seg.ts#x", &mut affordable()).unwrap();
        assert_eq!(resource.unwrap().as_str(), "https://h/seg.ts");
    }

    #[test]
    fn behind_a_redirect_relative_addresses_are_of_the_place_it_led_to() {
        let other = place("https://h/live", "https://edge.example/1/list.m3u8");
        assert_eq!(moved(&other, "seg.ts").unwrap(), format!("{VIA}https://edge.example/1/seg.ts"));
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
            assert_eq!(place.moved(&format!("data:,{long}"), &mut cost).unwrap(), None);
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
