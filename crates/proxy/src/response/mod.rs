//! Responses of the proxy: [`body`] has bodies of all kinds, [`own`] the proxy's own texts and the header fields that
//! keep browsers from executing what it passes on.

pub(crate) mod body;
pub(crate) mod own;
