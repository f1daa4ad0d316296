//! One resource over many links.

mod config;
mod event;
mod notice;
mod span;

pub use config::{BAN_REST, Config, MeteredUse, Policy, Resume, SlowLink, Thesis, UnknownPolicy};
pub use event::{
    Ask, ConnId, ContentRange, Head, Input, OriginId, Output, PathSample, Protocol, ReqId, Trouble, TroubleKind,
    Validator,
};
pub use notice::{Ban, Failure, Notice, OneAnswer};
pub use span::Span;
