//! Notices for the user and reasons of failures, as data.
//!
//! Each notice is one line and is sent once. The text is made at the very end, by `Display`, so that JSON readers get
//! the facts and people a sentence.

use alloc::string::String;
use core::fmt;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ByteRange, ConnError, UrlId};
use crate::link::LinkId;
use crate::units::DataSize;

/// A message about the course of a download.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "notice")]
pub enum Notice {
    /// A link is out of use until a probe succeeds, or for the rest of the run.
    Banned {
        /// The link.
        link: LinkId,
        /// The cause.
        reason: BanReason,
        /// Whether it is probed later.
        will_probe: bool,
    },
    /// A link delivers data again.
    Recovered {
        /// The link.
        link: LinkId,
    },
    /// A link has delivered nothing for this long. Its ranges go to other links when those have nothing else to
    /// request.
    Stalled {
        /// The link.
        link: LinkId,
        /// Time since its last activity.
        duration: Duration,
    },
    /// A metered link is used because no unmetered one works.
    MeteredInUse {
        /// The link.
        link: LinkId,
    },
    /// A link has used up its data budget, and is not used again in this download.
    BudgetSpent {
        /// The link.
        link: LinkId,
        /// The budget.
        budget: DataSize,
    },
    /// Only a single response over one link can be used.
    SingleResponse {
        /// The cause.
        reason: SingleResponseReason,
    },
    /// A whole file is accepted although this link did not respond, and so could not confirm it.
    Unconfirmed {
        /// The link that did not respond in time.
        link: LinkId,
        /// The link whose response is accepted.
        accepted_from: LinkId,
    },
    /// The server requests a pause, or fails for the moment.
    ServerBusy {
        /// The link that pauses.
        #[serde(default = "default_link")]
        link: LinkId,
        /// Length of the pause.
        wait: Duration,
        /// The Retry-After value, if it is longer than the longest pause that is made.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after: Option<Duration>,
        /// Status of the response.
        status: u16,
    },
    /// The file on the server has changed; the download begins again.
    FileChanged,
    /// The mirror in use has failed; the next one is used on all links, for the whole file.
    MirrorSwitched {
        /// The mirror that failed.
        failed: UrlId,
        /// The next mirror.
        next: UrlId,
        /// The cause, as text.
        reason: String,
        /// Bytes had been received, and none of them is kept.
        discards_data: bool,
    },
    /// Bytes do not match their digest and are fetched again.
    DigestMismatch {
        /// The bytes.
        range: ByteRange,
        /// The mirror that delivered all of them, and is excluded; none: more than one mirror, or an earlier run.
        mirror: Option<UrlId>,
    },
    /// A link switches to the next mirror. Other links may still use the previous one.
    LinkMirrorSwitched {
        /// The link.
        link: LinkId,
        /// The mirror that it leaves.
        previous: UrlId,
        /// The cause.
        reason: BanReason,
    },
}

/// Default for logs in which a pause does not name the link.
fn default_link() -> LinkId {
    LinkId(0)
}

/// Why a link or mirror is not used.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "why")]
pub enum BanReason {
    /// Its response has another length than expected (a captive portal, or another file).
    LengthMismatch {
        /// The length that it states.
        actual: Option<DataSize>,
        /// The length that the other links reported.
        expected: Option<DataSize>,
    },
    /// It delivers an HTML page instead of the file.
    HtmlPage,
    /// Its response has another validator than expected.
    ValidatorMismatch,
    /// Its response has a status that other links did not get (a captive portal, or a CDN node without the file).
    BadStatus {
        /// The status.
        status: u16,
    },
    /// It fails repeatedly.
    RepeatedErrors {
        /// The last failure.
        error: ConnError,
    },
    /// It is much slower than the others (thesis §8.2.4).
    Slow,
    /// The operating system reported that the link is gone.
    Down,
    /// The file is available only as a whole, which exceeds the remaining budget.
    OverBudget,
    /// Its response is not valid for the request.
    ProtocolViolation {
        /// Description of the defect.
        text: String,
    },
}

/// Why the whole resource comes as a single response over one link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SingleResponseReason {
    /// The server answered 200: it ignores or refuses ranges.
    NoRanges,
    /// The server does not state the length of the file.
    NoLength,
    /// There is neither a strong ETag nor a usable Last-Modified, so two responses could be of two versions.
    NoValidator,
    /// The responses to range requests cannot be used.
    UnusableRanges,
    /// The stated size equals the end of the first request: some servers state the size of the part as that of the
    /// file.
    SuspectLength,
    /// The validator differs in each response, so two responses could be of two versions.
    UnstableValidator,
}

/// Why the download ends without the file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "failure")]
pub enum Failure {
    /// The server refuses with a status that no retry will change.
    BadStatus {
        /// The status.
        status: u16,
    },
    /// No usable link is left, and none is expected to recover.
    NoLink {
        /// The last failure of a link.
        error: Option<ConnError>,
    },
    /// Servers accept requests but do not respond, while the links work.
    NoResponse,
    /// The retries are exhausted.
    RetriesExhausted {
        /// The last failure.
        error: ConnError,
    },
    /// Every link has used up its data budget.
    BudgetExhausted,
    /// The bytes do not match their digest, whichever mirror delivers them.
    DigestMismatch,
    /// Every link gets an HTML page instead of the file.
    HtmlPage,
    /// Too many redirects, or a redirect loop.
    RedirectLoop,
    /// The server's responses are not valid for the requests.
    ProtocolViolation {
        /// Description of the defect.
        text: String,
    },
}

impl fmt::Display for BanReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LengthMismatch { actual: Some(actual), expected: Some(expected) } => write!(
                f,
                "its response is {} bytes long instead of {} (a captive portal?)",
                actual.bytes(),
                expected.bytes()
            ),
            Self::LengthMismatch { .. } => f.write_str("its response has a different length (a captive portal?)"),
            Self::HtmlPage => f.write_str("it sends an HTML page instead of the file (a captive portal?)"),
            Self::ValidatorMismatch => f.write_str("its server has another version of the file"),
            // These statuses come from the server or its file, so no captive portal is suspected.
            Self::BadStatus { status } if is_server_status(*status) => {
                write!(f, "its server answers {}", StatusCode(*status))
            }
            Self::BadStatus { status } => write!(f, "it answers {} (a captive portal?)", StatusCode(*status)),
            Self::RepeatedErrors { error } => write!(f, "it keeps failing: {}", error.text),
            Self::Slow => f.write_str("it is far slower than the others"),
            Self::Down => f.write_str("the interface is down"),
            Self::OverBudget => {
                f.write_str("the file is available only as a whole, which exceeds its remaining data budget")
            }
            Self::ProtocolViolation { text } => write!(f, "its response is invalid: {text}"),
        }
    }
}

/// Whether a status concerns the server or its file rather than a captive portal in front of it.
fn is_server_status(status: u16) -> bool {
    matches!(status, 401 | 403 | 404 | 408 | 410 | 429 | 500..=504)
}

/// A status code, displayed with its name.
struct StatusCode(u16);

impl fmt::Display for StatusCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            400 => "bad request",
            401 => "unauthorized",
            402 => "payment required",
            403 => "forbidden",
            404 => "not found",
            405 => "method not allowed",
            406 => "not acceptable",
            407 => "proxy authentication required",
            408 => "request timeout",
            410 => "gone",
            416 => "range not satisfiable",
            421 => "misdirected request",
            429 => "too many requests",
            451 => "unavailable for legal reasons",
            500 => "internal server error",
            501 => "not implemented",
            502 => "bad gateway",
            503 => "service unavailable",
            504 => "gateway timeout",
            507 => "insufficient storage",
            511 => "network authentication required",
            _ => return write!(f, "{}", self.0),
        };
        write!(f, "{} ({name})", self.0)
    }
}

impl fmt::Display for SingleResponseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoRanges => "the server does not serve ranges",
            Self::NoLength => "the server does not state the length of the file",
            Self::NoValidator => "the server gives no strong validator, so responses cannot be combined",
            Self::UnusableRanges => "the server's responses to range requests cannot be used",
            Self::SuspectLength => "the stated file size equals the end of the request, so it is checked",
            Self::UnstableValidator => "the server reports another version of the file in each response",
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadStatus { status } => write!(f, "the server answers {}", StatusCode(*status)),
            Self::NoLink { error: Some(error) } => write!(f, "no link is left: {}", error.text),
            Self::NoLink { error: None } => f.write_str("no link is left"),
            Self::NoResponse => {
                f.write_str("the server accepts requests but does not respond: no data for two minutes")
            }
            Self::RetriesExhausted { error } => write!(f, "gave up: {}", error.text),
            Self::BudgetExhausted => f.write_str("the links' data budgets are used up, or too small for the file"),
            Self::DigestMismatch => f.write_str("the file does not match its digest"),
            Self::HtmlPage => f.write_str("the server sends an HTML page instead of the file"),
            Self::RedirectLoop => f.write_str("too many redirects, or a redirect loop"),
            Self::ProtocolViolation { text } => write!(f, "invalid response from the server: {text}"),
        }
    }
}
