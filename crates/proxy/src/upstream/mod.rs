//! Requests to the servers: [`links`] ranks the links for a host, [`headers`] decides which fields of a player are
//! forwarded, [`origin_headers`] has fields that the user sets, [`single_link`] fetches one response over one link, and
//! [`request_error`] is why a request of a player fails.

pub(crate) mod headers;
pub(crate) mod links;
pub(crate) mod origin_headers;
pub(crate) mod request_error;
pub(crate) mod single_link;
