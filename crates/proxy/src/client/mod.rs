//! Clients of the proxy: which connections are admitted, what they request, and how much memory they get.

pub(crate) mod admission;
pub(crate) mod buffer_budget;
pub(crate) mod media_url;
pub(crate) mod origin_check;
pub(crate) mod range;
pub(crate) mod stream;
pub(crate) mod token;
pub(crate) mod windows;
