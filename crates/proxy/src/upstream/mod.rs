//! Requests to the servers: links, header fields, and responses over one link.

pub(crate) mod headers;
pub(crate) mod links;
pub(crate) mod origin_headers;
pub(crate) mod request_error;
pub(crate) mod single_link;
