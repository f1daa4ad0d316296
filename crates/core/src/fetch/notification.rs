//! What the user is told of a download, as data: one line each, said once.
//!
//! Text is made at the end of the way (by `Display`), so that a JSON reader gets the facts and a person the sentence.

use alloc::string::String;
use core::fmt;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ByteRange, ConnError, UrlId};
use crate::link::LinkId;
use crate::units::DataSize;

/// Something worth one line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "notice")]
pub enum Notice {
    /// A link will not be used until a probe succeeds, or never again.
    Banned {
        /// Which one.
        link: LinkId,
        /// Why.
        reason: BanReason,
        /// Whether it is tried again later.
        will_probe: bool,
    },
    /// A link carries data again.
    Recovered {
        /// Which one.
        link: LinkId,
    },
    /// Nothing has come over a link for this long; its spans go to the others when they have nothing better to do.
    Stalled {
        /// Which one.
        link: LinkId,
        /// For how long.
        duration: Duration,
    },
    /// A metered link is used because no other works.
    MeteredInUse {
        /// Which one.
        link: LinkId,
    },
    /// A link has carried all that it may in this run.
    BudgetSpent {
        /// Which one.
        link: LinkId,
        /// The budget.
        budget: DataSize,
    },
    /// Only one answer on one link can be used.
    SingleResponse {
        /// Why.
        reason: SingleResponseReason,
    },
    /// A whole file is taken for what was asked although this link could not say anything about it.
    Unconfirmed {
        /// The link that did not answer in time.
        link: LinkId,
        /// The link whose answer is taken.
        accepted_from: LinkId,
    },
    /// The server asks for a pause.
    ServerBusy {
        /// Which link waits.
        #[serde(default = "default_link")]
        link: LinkId,
        /// How long it will be.
        wait: Duration,
        /// What the server asked for, where that is longer than anything is waited for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after: Option<Duration>,
        /// Status that asked for it.
        status: u16,
    },
    /// The file on the server is another one now; the download starts again.
    FileChanged,
    /// The source in use has failed: the next one is asked for the whole file, over all links.
    MirrorSwitched {
        /// The source that failed.
        failed: UrlId,
        /// The next one.
        next: UrlId,
        /// Why, in words.
        reason: String,
        /// Bytes had come, and nothing of them is kept.
        discards_data: bool,
    },
    /// Bytes do not match their digest and are fetched again.
    DigestMismatch {
        /// Which bytes.
        range: ByteRange,
        /// The source that delivered all of them, and is not asked any more; none: not one alone.
        mirror: Option<UrlId>,
    },
    /// A link goes on with the next of several places. Others may still ask the one that it leaves.
    LinkMirrorSwitched {
        /// Which link.
        link: LinkId,
        /// The place that it leaves.
        previous: UrlId,
        /// Why.
        reason: BanReason,
    },
}

/// The link of a pause in logs that do not name it.
fn default_link() -> LinkId {
    LinkId(0)
}

/// Why a link or an origin is not used.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "why")]
pub enum BanReason {
    /// Its answer has another length than the others' (a captive portal, or another file).
    LengthMismatch {
        /// What it says.
        actual: Option<DataSize>,
        /// What the others say.
        expected: Option<DataSize>,
    },
    /// It sends an HTML page instead of the file.
    HtmlPage,
    /// Its answer has another validator than the others'.
    ValidatorMismatch,
    /// Its answer has a status that the others do not give (a captive portal, or an edge without the file).
    BadStatus {
        /// The status.
        status: u16,
    },
    /// It fails again and again.
    RepeatedErrors {
        /// The last failure.
        error: ConnError,
    },
    /// It is much slower than the others (thesis §8.2.4).
    Slow,
    /// The system took it away.
    Down,
    /// The file can only come as a whole, and is larger than what is left of its budget.
    OverBudget,
    /// It answers what was not asked.
    ProtocolViolation {
        /// In words.
        text: String,
    },
}

/// Why the resource comes as one answer over one link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SingleResponseReason {
    /// The server answered 200: it ignores ranges or refuses them.
    NoRanges,
    /// The server does not say how long the file is.
    NoLength,
    /// There is neither a strong ETag nor a usable Last-Modified, so two answers could be of two files.
    NoValidator,
    /// The answers to requests for ranges cannot be used.
    UnusableRanges,
    /// The file is said to end exactly where the first request did: servers that take a part for the whole say so.
    SuspectLength,
    /// The validator is another one each time, so two answers could be of two files.
    UnstableValidator,
}

/// Why the download ends without the file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "failure")]
pub enum Failure {
    /// The server refuses: a status that no retry will change.
    BadStatus {
        /// The status.
        status: u16,
    },
    /// No link is left, and none is expected back.
    NoLink {
        /// The last failure.
        error: Option<ConnError>,
    },
    /// Servers take the requests and do not answer: their silence, not the links'.
    NoResponse,
    /// The retries are used up.
    RetriesExhausted {
        /// The last failure.
        error: ConnError,
    },
    /// Every link has carried all that it may.
    BudgetExhausted,
    /// The bytes do not match their digest, whatever source they come from.
    DigestMismatch,
    /// Every link gets an HTML page instead of the file.
    HtmlPage,
    /// Redirects without end.
    RedirectLoop,
    /// The server sends something else than was asked for.
    ProtocolViolation {
        /// In words.
        text: String,
    },
}

impl fmt::Display for BanReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LengthMismatch { actual: Some(actual), expected: Some(expected) } => write!(
                f,
                "its answer is {} bytes long instead of {} (a captive portal?)",
                actual.bytes(),
                expected.bytes()
            ),
            Self::LengthMismatch { .. } => f.write_str("its answer has another length (a captive portal?)"),
            Self::HtmlPage => f.write_str("it sends an HTML page instead of the file (a captive portal?)"),
            Self::ValidatorMismatch => f.write_str("its server has another version of the file"),
            // A server that cannot answer now is no captive portal, and neither is one that does not have the file.
            Self::BadStatus { status } if is_server_status(*status) => {
                write!(f, "its server answers {}", StatusCode(*status))
            }
            Self::BadStatus { status } => write!(f, "it answers {} (a captive portal?)", StatusCode(*status)),
            Self::RepeatedErrors { error } => write!(f, "it keeps failing: {}", error.text),
            Self::Slow => f.write_str("it is far slower than the others"),
            Self::Down => f.write_str("the interface is down"),
            Self::OverBudget => {
                f.write_str("the file comes as a whole only, and is larger than what is left of its budget")
            }
            Self::ProtocolViolation { text } => write!(f, "it answers what was not asked: {text}"),
        }
    }
}

/// Whether a status tells of the server or its file, and not of a captive portal in front of it.
fn is_server_status(status: u16) -> bool {
    matches!(status, 401 | 403 | 404 | 408 | 410 | 429 | 500..=504)
}

/// A status code with its name.
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
            Self::NoLength => "the server does not say how long the file is",
            Self::NoValidator => "the server gives no strong validator, so answers must not be mixed",
            Self::UnusableRanges => "the server's answers to requests for ranges cannot be used",
            Self::SuspectLength => "the file is said to end exactly where the request did, which is made sure of",
            Self::UnstableValidator => "the server names another version of the file each time",
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
                f.write_str("the server takes requests and does not answer, nothing has come for two minutes")
            }
            Self::RetriesExhausted { error } => write!(f, "gave up: {}", error.text),
            Self::BudgetExhausted => f.write_str("the budgets of the links are spent, or too small for the file"),
            Self::DigestMismatch => f.write_str("the file does not match its digest"),
            Self::HtmlPage => f.write_str("the server sends an HTML page instead of the file"),
            Self::RedirectLoop => f.write_str("the redirects lead nowhere"),
            Self::ProtocolViolation { text } => write!(f, "the server answers what was not asked: {text}"),
        }
    }
}
