//! Sends commands to the kernel's path manager over generic netlink.
//!
//! Each request yields one [`Ack`], in the same order, with the kernel's own message. [`command_error`] translates it
//! for the policy.

use std::io;

use marline_core::paths::CommandError;
use marline_core::wire::netlink::mptcp::{self, Endpoint, Limits, SubflowTuple};
use marline_core::wire::netlink::{Ack, GenlFamily, Request, messages};
use marline_sys::netlink::{Protocol, Socket};

use super::super::PathsError;

/// The path manager of this thread's network namespace.
#[derive(Debug)]
pub(crate) struct PathManager {
    socket: Socket,
    family: GenlFamily,
}

impl PathManager {
    pub(crate) fn open() -> Result<Self, PathsError> {
        let socket = Socket::open(Protocol::Generic).map_err(|e| PathsError::kernel("generic netlink", e))?;
        let family_error = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => PathsError::NoMptcp(error),
            _ => PathsError::kernel("generic netlink family of MPTCP's path manager", error),
        };
        let reply = socket.request(&GenlFamily::lookup(mptcp::FAMILY).finish(1)).map_err(family_error)?;
        let family = messages(&reply).find_map(|m| GenlFamily::parse(&m));
        let family = family
            .ok_or_else(|| PathsError::NoMptcp(io::Error::other("the netlink family of MPTCP is missing")))?;
        Ok(Self { socket, family })
    }

    /// Id of the generic netlink family.
    pub(crate) fn family_id(&self) -> u16 {
        self.family.id
    }

    /// Id of the multicast group of events.
    pub(crate) fn event_group(&self) -> Option<u32> {
        self.family.group(mptcp::EVENTS)
    }

    /// Executes commands in order; the results have the same indices.
    pub(crate) fn execute(&self, commands: Vec<Request>) -> io::Result<Vec<Ack>> {
        let bytes: Vec<Vec<u8>> = commands.into_iter().map(|command| command.finish(0)).collect();
        // A command without a reply counts as failed.
        let no_reply = Ack { sequence: 0, error: rustix::io::Errno::PROTO.raw_os_error(), message: String::new() };
        let mut acks = vec![no_reply; bytes.len()];
        for (chunk, acks) in bytes.chunks(MAX_BATCH).zip(acks.chunks_mut(MAX_BATCH)) {
            self.socket.exchange(chunk.iter().map(Vec::as_slice), |index, message| {
                let ack = messages(message).find_map(|m| Ack::parse(&m));
                if let (Some(slot), Some(ack)) = (acks.get_mut(index), ack) {
                    *slot = ack;
                }
            })?;
        }
        Ok(acks)
    }

    /// Destroys subflows, whatever the family of their sockets; the results have the same indices.
    pub(crate) fn destroy_subflows(&self, subflows: &[SubflowTuple]) -> io::Result<Vec<Ack>> {
        let requests = subflows.iter().map(|subflow| subflow.destroy(self.family.id)).collect();
        let mut acks = self.execute(requests)?;
        for (subflow, ack) in subflows.iter().zip(&mut acks) {
            if let Some(retried) = self.destroy_v4_mapped(subflow, ack) {
                *ack = retried;
            }
        }
        Ok(acks)
    }

    /// Retries to destroy an IPv4 subflow that was not found, as an IPv4-mapped address of an IPv6 socket. None: it
    /// was found, or it is no IPv4 subflow.
    pub(crate) fn destroy_v4_mapped(&self, subflow: &SubflowTuple, ack: &Ack) -> Option<Ack> {
        let is_missing = command_error(ack) == Some(CommandError::NoSubflow);
        let request = subflow.destroy_mapped(self.family.id).filter(|_| is_missing)?;
        self.execute(vec![request]).ok()?.pop()
    }

    /// The endpoints of the kernel's own path manager.
    pub(crate) fn endpoints(&self) -> io::Result<Vec<Endpoint>> {
        let reply = self.socket.request(&Endpoint::dump(self.family.id).finish(1))?;
        Ok(messages(&reply).filter_map(|m| Endpoint::parse(&m, self.family.id)).collect())
    }

    /// The limits of the kernel's own path manager.
    pub(crate) fn limits(&self) -> io::Result<Limits> {
        let reply = self.socket.request(&Limits::query(self.family.id).finish(1))?;
        let limits = messages(&reply).find_map(|m| Limits::parse(&m, self.family.id));
        limits.ok_or_else(|| io::Error::other("the kernel did not return its limits"))
    }
}

/// Commands in one call. Our choice: their replies fit the socket's buffer many times.
const MAX_BATCH: usize = 64;

/// Translates a refused command for the policy; none: it succeeded.
pub(crate) fn command_error(ack: &Ack) -> Option<CommandError> {
    use rustix::io::Errno;
    const NOT_CONNECTED: i32 = Errno::NOTCONN.raw_os_error();
    const INVALID: i32 = Errno::INVAL.raw_os_error();
    const NO_PROCESS: i32 = Errno::SRCH.raw_os_error();
    const NO_ENTRY: i32 = Errno::NOENT.raw_os_error();
    const PERMISSION: i32 = Errno::PERM.raw_os_error();
    const ACCESS: i32 = Errno::ACCESS.raw_os_error();
    const NO_ADDRESS: i32 = Errno::ADDRNOTAVAIL.raw_os_error();
    const NO_NETWORK: i32 = Errno::NETUNREACH.raw_os_error();
    const NO_HOST: i32 = Errno::HOSTUNREACH.raw_os_error();
    const NO_DEVICE: i32 = Errno::NODEV.raw_os_error();
    let message_has = |text: &str| ack.message.contains(text);
    Some(match ack.error {
        0 => return None,
        NOT_CONNECTED => CommandError::NotYet,
        PERMISSION | ACCESS => CommandError::NotPermitted,
        NO_ADDRESS | NO_NETWORK | NO_HOST | NO_DEVICE => CommandError::NoAddress,
        INVALID if message_has("token") || message_has("not selected") => CommandError::NoConnection,
        INVALID if message_has("subflow not found") => CommandError::NoSubflow,
        INVALID if is_family_mismatch(ack) => CommandError::NoAddress,
        NO_PROCESS | NO_ENTRY => CommandError::NoSubflow,
        other => CommandError::Other(other),
    })
}

/// Whether a join was refused because the connection's socket supports only IPv4 or only IPv6, and the addresses
/// belong to the other family.
pub(crate) fn is_family_mismatch(ack: &Ack) -> bool {
    ack.error != 0 && ack.message.contains("families mismatch")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(error: i32, text: &str) -> Option<CommandError> {
        command_error(&Ack { sequence: 0, error, message: text.into() })
    }

    #[test]
    fn errors_of_the_kernel_are_translated() {
        assert_eq!(error_of(0, ""), None);
        assert_eq!(error_of(107, ""), Some(CommandError::NotYet));
        assert_eq!(error_of(22, "invalid token"), Some(CommandError::NoConnection));
        assert_eq!(error_of(22, "userspace PM not selected"), Some(CommandError::NoConnection));
        assert_eq!(error_of(22, "subflow not found"), Some(CommandError::NoSubflow));
        assert_eq!(error_of(3, ""), Some(CommandError::NoSubflow));
        assert_eq!(error_of(99, ""), Some(CommandError::NoAddress));
        assert_eq!(error_of(1, ""), Some(CommandError::NotPermitted));
        assert_eq!(error_of(22, "did not match address and id"), Some(CommandError::Other(22)));
    }
}
