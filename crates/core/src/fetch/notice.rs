//! What the user is told of a download, as data: one line each, said once.
//!
//! Text is made at the end of the way (by `Display`), so that a JSON reader gets the facts and a person the sentence.

use alloc::string::String;
use core::fmt;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::{OriginId, Span, Trouble};
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
        why: Ban,
        /// Whether it is tried again later.
        probing: bool,
    },
    /// A link carries data again.
    Back {
        /// Which one.
        link: LinkId,
    },
    /// Nothing has come over a link for this long; its spans go to the others when they have nothing better to do.
    Silent {
        /// Which one.
        link: LinkId,
        /// For how long.
        after: Duration,
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
    OneAnswer {
        /// Why.
        why: OneAnswer,
    },
    /// A whole file is taken for what was asked although this link could not say anything about it.
    Unconfirmed {
        /// The link that did not answer in time.
        link: LinkId,
        /// The link whose answer is taken.
        told: LinkId,
    },
    /// The server asks for a pause.
    Pause {
        /// Which link waits.
        #[serde(default = "first_link")]
        link: LinkId,
        /// How long it will be.
        wait: Duration,
        /// What the server asked for, where that is longer than anything is waited for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        asked: Option<Duration>,
        /// Status that asked for it.
        status: u16,
    },
    /// The file on the server is another one now; the download starts again.
    Changed,
    /// The source in use has failed: the next one is asked for the whole file, over all links.
    NextSource {
        /// The source that failed.
        left: OriginId,
        /// The next one.
        next: OriginId,
        /// Why, in words.
        why: String,
        /// Bytes had come, and nothing of them is kept.
        from_zero: bool,
    },
    /// Bytes do not match their digest and are fetched again.
    Mismatch {
        /// Which bytes.
        span: Span,
        /// The source that delivered all of them, and is not asked any more; none: not one alone.
        source: Option<OriginId>,
    },
    /// A link goes on with the next of several places. Others may still ask the one that it leaves.
    NextOrigin {
        /// Which link.
        link: LinkId,
        /// The place that it leaves.
        left: OriginId,
        /// Why.
        why: Ban,
    },
}

/// The link of a pause in logs that do not name it.
fn first_link() -> LinkId {
    LinkId(0)
}

/// Why a link or an origin is not used.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "why")]
pub enum Ban {
    /// Its answer has another length than the others' (a captive portal, or another file).
    OtherLength {
        /// What it says.
        got: Option<DataSize>,
        /// What the others say.
        want: Option<DataSize>,
    },
    /// It sends an HTML page instead of the file.
    Page,
    /// Its answer has another validator than the others'.
    OtherValidator,
    /// Its answer has a status that the others do not give (a captive portal, or an edge without the file).
    OtherStatus {
        /// The status.
        status: u16,
    },
    /// It fails again and again.
    Trouble {
        /// The last failure.
        trouble: Trouble,
    },
    /// It is much slower than the others (thesis §8.2.4).
    Slow,
    /// The system took it away.
    Down,
    /// The file can only come as a whole, and is larger than what is left of its budget.
    Budget,
    /// It answers what was not asked.
    Protocol {
        /// In words.
        text: String,
    },
}

/// Why the resource comes as one answer over one link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OneAnswer {
    /// The server answered 200: it ignores ranges or refuses them.
    NoRanges,
    /// The server does not say how long the file is.
    NoLength,
    /// There is neither a strong ETag nor a usable Last-Modified, so two answers could be of two files.
    NoValidator,
    /// The answers to requests for ranges cannot be used.
    BadRanges,
    /// The file is said to end exactly where the first request did: servers that take a part for the whole say so.
    Doubtful,
    /// The validator is another one each time, so two answers could be of two files.
    Unsteady,
}

/// Why the download ends without the file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "failure")]
pub enum Failure {
    /// The server refuses: a status that no retry will change.
    Status {
        /// The status.
        status: u16,
    },
    /// No link is left, and none is expected back.
    NoLink {
        /// The last failure.
        trouble: Option<Trouble>,
    },
    /// Servers take the requests and do not answer: their silence, not the links'.
    NoAnswer,
    /// The retries are used up.
    Retries {
        /// The last failure.
        trouble: Trouble,
    },
    /// Every link has carried all that it may.
    Budget,
    /// The bytes do not match their digest, whatever source they come from.
    Digest,
    /// Every link gets an HTML page instead of the file.
    Page,
    /// Redirects without end.
    Redirect,
    /// The server sends something else than was asked for.
    Protocol {
        /// In words.
        text: String,
    },
}

impl fmt::Display for Ban {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherLength { got: Some(got), want: Some(want) } => write!(
                f,
                "its answer is {} bytes long instead of {} (a captive portal?)",
                got.bytes(),
                want.bytes()
            ),
            Self::OtherLength { .. } => f.write_str("its answer has another length (a captive portal?)"),
            Self::Page => f.write_str("it sends an HTML page instead of the file (a captive portal?)"),
            Self::OtherValidator => f.write_str("its server has another version of the file"),
            // A server that cannot answer now is no captive portal, and neither is one that does not have the file.
            Self::OtherStatus { status } if is_of_server(*status) => {
                write!(f, "its server answers {}", Named(*status))
            }
            Self::OtherStatus { status } => write!(f, "it answers {} (a captive portal?)", Named(*status)),
            Self::Trouble { trouble } => write!(f, "it keeps failing: {}", trouble.text),
            Self::Slow => f.write_str("it is far slower than the others"),
            Self::Down => f.write_str("the interface is down"),
            Self::Budget => {
                f.write_str("the file comes as a whole only, and is larger than what is left of its budget")
            }
            Self::Protocol { text } => write!(f, "it answers what was not asked: {text}"),
        }
    }
}

/// Whether a status tells of the server or its file, and not of a captive portal in front of it.
fn is_of_server(status: u16) -> bool {
    matches!(status, 401 | 403 | 404 | 408 | 410 | 429 | 500..=504)
}

/// A status code with its name.
struct Named(u16);

impl fmt::Display for Named {
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

impl fmt::Display for OneAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoRanges => "the server does not serve ranges",
            Self::NoLength => "the server does not say how long the file is",
            Self::NoValidator => "the server gives no strong validator, so answers must not be mixed",
            Self::BadRanges => "the server's answers to requests for ranges cannot be used",
            Self::Doubtful => "the file is said to end exactly where the request did, which is made sure of",
            Self::Unsteady => "the server names another version of the file each time",
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status { status } => write!(f, "the server answers {}", Named(*status)),
            Self::NoLink { trouble: Some(trouble) } => write!(f, "no link is left: {}", trouble.text),
            Self::NoLink { trouble: None } => f.write_str("no link is left"),
            Self::NoAnswer => {
                f.write_str("the server takes requests and does not answer, nothing has come for two minutes")
            }
            Self::Retries { trouble } => write!(f, "gave up: {}", trouble.text),
            Self::Budget => f.write_str("the budgets of the links are spent, or too small for the file"),
            Self::Digest => f.write_str("the file does not match its digest"),
            Self::Page => f.write_str("the server sends an HTML page instead of the file"),
            Self::Redirect => f.write_str("the redirects lead nowhere"),
            Self::Protocol { text } => write!(f, "the server answers what was not asked: {text}"),
        }
    }
}
