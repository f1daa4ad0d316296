//! `marline links`: what there is, and why a link is not used.

use std::path::Path;

use crate::Exit;
use crate::args::LinksArgs;

pub(crate) fn run(_: &LinksArgs, _: Option<&Path>) -> Result<(), Exit> {
    Ok(())
}
