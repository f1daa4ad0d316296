//! Distances between edges and relays, used to sort the candidate relays of an edge.
//!
//! 1. Both positions known: the great-circle distance (haversine on a sphere of the mean radius).
//! 2. Otherwise, an RTT measured by the edge: 1 ms counts as 100 km, the distance that light in fibre covers there and back.
//! 3. Otherwise the distance is unknown. Unknown distances sort last, in an order that differs between edges, so that not all edges
//!    try the same relay first.
//!
//! Positions are not derived from IP addresses: geolocation tables are commercial or outdated, and for a mobile network they give the
//! position of the operator's gateway.

use alloc::format;
use alloc::string::String;
use core::cmp::Ordering;
use core::str::FromStr;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::Name;

/// A position on earth, in degrees.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "PositionRepr")]
pub struct Position {
    latitude: f64,
    longitude: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PositionRepr {
    latitude: f64,
    longitude: f64,
}

impl FromStr for Position {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let degrees =
            text.split_once(',').and_then(|(north, east)| Some((north.parse().ok()?, east.parse().ok()?)));
        let (north, east) = degrees.ok_or_else(|| format!("`{text}` is not a position such as 50.11,8.68"))?;
        Self::new(north, east)
    }
}

impl Position {
    /// Latitude (north positive) and longitude (east positive), in degrees.
    ///
    /// # Errors
    /// A value is out of range or not a number.
    pub fn new(latitude: f64, longitude: f64) -> Result<Self, String> {
        if latitude.abs() <= 90.0 && longitude.abs() <= 180.0 {
            return Ok(Self { latitude, longitude });
        }
        Err(format!("{latitude}, {longitude} is not a position: latitude must be -90 to 90, longitude -180 to 180"))
    }

    /// Great-circle distance in kilometres.
    pub fn distance_km(self, other: Self) -> f64 {
        let (from, to) = (self.latitude.to_radians(), other.latitude.to_radians());
        let haversine = |degrees: f64| {
            let sine = libm::sin(degrees.to_radians() / 2.0);
            sine * sine
        };
        let root = haversine(other.latitude - self.latitude)
            + libm::cos(from) * libm::cos(to) * haversine(other.longitude - self.longitude);
        2.0 * EARTH_KM * libm::asin(libm::sqrt(root.clamp(0.0, 1.0)))
    }
}

impl TryFrom<PositionRepr> for Position {
    type Error = String;
    fn try_from(degrees: PositionRepr) -> Result<Self, String> {
        Self::new(degrees.latitude, degrees.longitude)
    }
}

/// The mean radius of the earth (IUGG).
const EARTH_KM: f64 = 6371.0088;
/// Rule 2: two thirds of the speed of light, halved because an RTT covers both directions.
const KM_PER_RTT_SECOND: f64 = 100_000.0;

/// The distance from an edge to a relay; smaller distances sort first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Distance {
    Km(f64),
    /// Not known; the hash gives the order (rule 3).
    Unknown(u64),
}

impl Distance {
    pub(super) fn of(
        positions: (Option<Position>, Option<Position>),
        rtt: Option<Duration>,
        names: (&Name, &Name),
    ) -> Self {
        match (positions, rtt) {
            ((Some(from), Some(to)), _) => Self::Km(from.distance_km(to)),
            (_, Some(rtt)) => Self::Km(rtt.as_secs_f64() * KM_PER_RTT_SECOND),
            _ => Self::Unknown(tie_break_hash(names)),
        }
    }

    pub(super) fn km(self) -> Option<f64> {
        match self {
            Self::Km(km) => Some(km),
            Self::Unknown(_) => None,
        }
    }

    pub(super) fn cmp_distance(self, other: Self) -> Ordering {
        match (self, other) {
            (Self::Km(a), Self::Km(b)) => a.total_cmp(&b),
            (Self::Unknown(a), Self::Unknown(b)) => a.cmp(&b),
            (Self::Km(_), Self::Unknown(_)) => Ordering::Less,
            (Self::Unknown(_), Self::Km(_)) => Ordering::Greater,
        }
    }
}

/// FNV-1a with the final mix of splitmix64. Its result is the same on every machine and in every version of the program.
fn tie_break_hash((edge, relay): (&Name, &Name)) -> u64 {
    let bytes = edge.as_str().bytes().chain([0]).chain(relay.as_str().bytes());
    let mut hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(latitude: f64, longitude: f64) -> Position {
        Position::new(latitude, longitude).unwrap()
    }

    #[test]
    fn great_circle_distances_match_an_atlas() {
        let (frankfurt, new_york, sydney) = (at(50.11, 8.68), at(40.71, -74.01), at(-33.87, 151.21));
        assert!((frankfurt.distance_km(new_york) - 6203.0).abs() < 15.0);
        assert!((frankfurt.distance_km(sydney) - 16_480.0).abs() < 40.0);
        assert_eq!(frankfurt.distance_km(frankfurt), 0.0);
        assert!((at(0.0, 179.5).distance_km(at(0.0, -179.5)) - 111.2).abs() < 0.1, "across the date line");
        assert!((at(90.0, 0.0).distance_km(at(-90.0, 0.0)) - 20_015.1).abs() < 1.0);
    }

    #[test]
    fn invalid_positions_are_rejected() {
        for text in [
            r#"{"latitude":91,"longitude":0}"#,
            r#"{"latitude":0,"longitude":-180.1}"#,
            r#"{"latitude":0}"#,
            r#"{"latitude":0,"longitude":0,"height":1}"#,
        ] {
            assert!(serde_json::from_str::<Position>(text).is_err(), "{text}");
        }
        assert!(Position::new(f64::NAN, 0.0).is_err());
    }

    #[test]
    fn known_distances_sort_before_unknown_ones() {
        let name = |text: &str| text.parse::<Name>().unwrap();
        let (cam, fra, ams) = (name("cam-7"), name("fra"), name("ams"));
        let location = Some(at(50.0, 8.0));
        let near = Distance::of((location, location), Some(Duration::from_secs(1)), (&cam, &fra));
        let measured = Distance::of((location, None), Some(Duration::from_millis(20)), (&cam, &fra));
        let unknown = Distance::of((None, location), None, (&cam, &fra));
        assert_eq!((near.km(), measured.km(), unknown.km()), (Some(0.0), Some(2000.0), None));
        assert_eq!(near.cmp_distance(measured), Ordering::Less);
        assert_eq!(measured.cmp_distance(unknown), Ordering::Less);
        // Without any knowledge about half of the edges try one relay first, and half the other.
        let first = (0..1000).filter(|n| {
            let cam = name(&format!("cam-{n}"));
            let distance_of = |relay| Distance::of((None, None), None, (&cam, relay));
            distance_of(&fra).cmp_distance(distance_of(&ams)) == Ordering::Less
        });
        assert!((400..600).contains(&first.count()));
    }
}
