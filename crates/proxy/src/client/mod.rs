//! Clients of the proxy: which connections are admitted, what they request, and how much memory they get.
//!
//! Connections: [`admission`] limits them, [`stream`] adds texts to hyper's own error responses, [`origin_check`]
//! rejects requests of foreign web pages, [`token`] protects the status port.
//!
//! Requests: [`media_url`] parses the URL in the path, [`range`] the Range field and the conditions.
//!
//! Memory: [`buffer_budget`] divides it among clients, [`windows`] takes buffers back from clients that do not read.

pub(crate) mod admission;
pub(crate) mod buffer_budget;
pub(crate) mod media_url;
pub(crate) mod origin_check;
pub(crate) mod range;
pub(crate) mod stream;
pub(crate) mod token;
pub(crate) mod windows;
