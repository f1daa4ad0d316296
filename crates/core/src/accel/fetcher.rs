//! Fast Fetcher: which bytes are missing, and over which link they are got (Super-aggregation §3.3, §4.2).

use alloc::string::String;
use alloc::vec::Vec;
use core::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::link::LinkId;
use crate::units::DataSize;

/// Which fetch: counted from one, never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FetchId(pub u64);

/// Bytes of a resource that are to be got over another connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Fetch {
    /// Which.
    pub id: FetchId,
    /// Over which link.
    pub link: LinkId,
    /// From whom: where the flow goes to.
    pub server: SocketAddr,
    /// The request as its application sent it, without fields of ranges and conditions: a request line and fields, each
    /// ended by CR LF, and no empty line. The fetch adds `Range` and `If-Range`.
    pub request: String,
    /// The strong validator that the answer must still have (RFC 9110 §8.8.3), quotes included.
    pub etag: String,
    /// The resource's whole length.
    pub length: DataSize,
    /// Where in the resource: first byte, and one past the last.
    pub ranges: Vec<(u64, u64)>,
}
