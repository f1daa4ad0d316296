//! Configuration of the accelerator: its links, its mechanisms, and the options of each.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::Options;
use super::mechanism::Mechanisms;
use super::secondary::link::SecondaryLink;
use crate::link::LinkId;

/// Everything that shapes the decisions, apart from the inputs. A decision log begins with it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The link whose flows are accelerated.
    pub primary: LinkId,
    /// The links that assist; may be empty. `secondary::roles` assigns their tasks.
    pub secondary_links: Vec<SecondaryLink>,
    /// What may be done.
    pub mechanisms: Mechanisms,
    /// Tuned values. They are not configurable and not recorded: simulations vary them.
    #[serde(skip)]
    pub options: &'static Options,
}

impl Config {
    /// A primary link, and at most one secondary link; the default mechanisms.
    pub fn new(primary: LinkId, secondary: Option<LinkId>) -> Self {
        Self {
            primary,
            secondary_links: secondary.into_iter().map(SecondaryLink::new).collect(),
            mechanisms: Mechanisms::default(),
            options: &Options::DEFAULT,
        }
    }
}
