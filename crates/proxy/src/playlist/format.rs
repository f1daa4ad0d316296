//! The formats of playlists, by extension and media type.

use http::header::HeaderValue;
use url::Url;

/// The format of a playlist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PlaylistFormat {
    Hls,
    Dash,
    /// Another format (PLS, ASX, XSPF, SMIL, …), which the proxy does not parse: it is passed on with marks.
    Other,
}

impl PlaylistFormat {
    /// Determines the format from the extension of the path.
    pub(crate) fn from_extension(url: &Url) -> Option<Self> {
        let extension = url.path().rsplit_once('.')?.1.to_ascii_lowercase();
        match extension.as_str() {
            "m3u8" | "m3u" => Some(Self::Hls),
            "mpd" => Some(Self::Dash),
            _ => None,
        }
    }

    /// Determines the format from the media type (RFC 8216 §4, ISO/IEC 23009-1 annex C).
    pub(crate) fn from_media_type(content_type: &str) -> Option<Self> {
        let media_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        // Servers use audio, application and video before the subtype.
        match media_type.split_once('/')?.1 {
            "vnd.apple.mpegurl" | "vnd.apple.mpegurl.audio" | "x-mpegurl" | "mpegurl" => Some(Self::Hls),
            "dash+xml" => Some(Self::Dash),
            "x-scpls" | "scpls" | "pls" | "pls+xml" | "xspf+xml" | "x-ms-asx" | "x-ms-wax" | "x-ms-wvx"
            | "x-ms-wpl" | "vnd.ms-wpl" | "smil" | "smil+xml" | "x-pn-realaudio" | "vnd.rn-realmedia" => {
                Some(Self::Other)
            }
            _ => None,
        }
    }

    /// The format by media type, or by an extension for which players take any text for a playlist. Some look for the
    /// extension at the end of the query.
    pub(crate) fn declared(url: &Url, content_type: Option<&str>) -> Option<Self> {
        let url_lower = url.as_str().to_ascii_lowercase();
        let has_extension = |name: &str| {
            let path = url.path().to_ascii_lowercase();
            [&path, &url_lower].iter().any(|text| text.strip_suffix(name).is_some_and(|rest| rest.ends_with('.')))
        };
        let by_extension = || match () {
            () if ["m3u", "m3u8"].into_iter().any(has_extension) => Some(Self::Hls),
            () if OTHER_EXTENSIONS.into_iter().any(has_extension) => Some(Self::Other),
            () => None,
        };
        content_type.and_then(Self::from_media_type).or_else(by_extension)
    }

    /// The media type of a rewritten playlist whose server has declared none.
    pub(crate) fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Hls => "application/vnd.apple.mpegurl",
            Self::Dash => "application/dash+xml",
            Self::Other => "text/plain",
        })
    }
}

/// Extensions of playlists that players parse and the proxy does not.
const OTHER_EXTENSIONS: [&str; 11] =
    ["pls", "asx", "wax", "wvx", "wpl", "zpl", "xspf", "smil", "smi", "ram", "b4s"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn playlists_are_recognized_by_name_or_media_type() {
        for (url, kind) in [
            ("https://h/a/list.M3U8?x=.mpd", Some(PlaylistFormat::Hls)),
            ("https://h/manifest.mpd", Some(PlaylistFormat::Dash)),
            ("https://h/film.mp4?list.m3u8", None),
            ("https://h/m3u8", None),
        ] {
            assert_eq!(PlaylistFormat::from_extension(&Url::parse(url).unwrap()), kind, "{url}");
        }
        assert_eq!(
            PlaylistFormat::from_media_type("Application/X-mpegURL; charset=utf-8"),
            Some(PlaylistFormat::Hls)
        );
        assert_eq!(PlaylistFormat::from_media_type("application/dash+xml"), Some(PlaylistFormat::Dash));
        assert_eq!(PlaylistFormat::from_media_type("audio/mpeg"), None);
        for (url, content_type, kind) in [
            ("https://h/radio.M3U", None, Some(PlaylistFormat::Hls)),
            ("https://h/radio?x=.m3u", Some("text/plain"), Some(PlaylistFormat::Hls)),
            ("https://h/radio", Some("audio/mpegurl"), Some(PlaylistFormat::Hls)),
            ("https://h/a.mpd", None, None),
            ("https://h/a.pls?x", None, Some(PlaylistFormat::Other)),
            ("https://h/a", Some("audio/x-scpls"), Some(PlaylistFormat::Other)),
            ("https://h/apls", None, None),
            ("https://h/a.m3u8", Some("application/dash+xml"), Some(PlaylistFormat::Dash)),
        ] {
            assert_eq!(PlaylistFormat::declared(&Url::parse(url).unwrap(), content_type), kind, "{url}");
        }
    }
}
