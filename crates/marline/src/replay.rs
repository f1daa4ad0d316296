//! `marline replay`

use crate::Exit;
use crate::args::ReplayArgs;

pub(crate) fn run(_: &ReplayArgs) -> Result<(), Exit> {
    Ok(())
}
