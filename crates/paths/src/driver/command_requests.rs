//! Translates commands of the policy into requests to the kernel's path manager.
//!
//! A command that cannot be expressed (no such subflow, no address of the family) fails here, with the same errors as
//! the kernel's refusals.

use marline_core::link::LinkId;
use marline_core::paths::{Command, CommandError, CommandId, ConnId, IpFamily, SubflowId};
use marline_core::wire::netlink::Request;
use marline_core::wire::netlink::mptcp::{NewSubflow, SubflowTuple};

use super::super::kernel::PathManager;
use super::super::snapshot::Management;
use super::interfaces::LinkInterfaces;
use super::subflow_table::{ConnEntry, SubflowTable};

/// A command that was not completed yet.
#[derive(Clone, Copy)]
pub(super) struct PendingCommand {
    pub(super) id: CommandId,
    pub(super) conn: ConnId,
    pub(super) command: Command,
}

/// Builds the netlink request of a command.
///
/// # Errors
/// The command cannot be executed; it is not sent.
pub(super) fn build_request(
    table: &SubflowTable,
    links: &LinkInterfaces,
    manager: Option<&PathManager>,
    command: &PendingCommand,
) -> Result<Request, CommandError> {
    let connection = table.conns.get(&command.conn).ok_or(CommandError::NoConnection)?;
    match connection.management {
        Management::Userspace => {}
        Management::PredatesSwitch => return Err(CommandError::NoConnection),
        Management::KernelPm | Management::DryRun => return Err(CommandError::NotPermitted),
    }
    let family = manager.ok_or(CommandError::NotPermitted)?.family_id();
    match command.command {
        Command::Join { link, backup } => {
            Ok(plan_subflow(links, command.conn, connection, link, backup)?.create(family))
        }
        Command::SetBackup { subflow, backup } => {
            Ok(subflow_tuple(command.conn, connection, subflow)?.set_backup(family, backup))
        }
        Command::Destroy { subflow } => Ok(subflow_tuple(command.conn, connection, subflow)?.destroy(family)),
    }
}

/// Chooses the addresses of a subflow over a link.
///
/// # Errors
/// The link has no suitable address, or the server has announced none.
pub(super) fn plan_subflow(
    links: &LinkInterfaces,
    conn: ConnId,
    connection: &ConnEntry,
    link: LinkId,
    backup: bool,
) -> Result<NewSubflow, CommandError> {
    let interface = links.get(link).filter(|interface| interface.is_up).ok_or(CommandError::NoAddress)?;
    // The server's own family first; the other one serves if the server has announced an address of it.
    let announced = connection.announced_addresses.iter().map(|(_, address, _)| *address);
    let mut servers = std::iter::once(connection.server.ip()).chain(announced);
    let addresses = servers.find_map(|server| {
        let local = interface.address_for(server).filter(|local| !interface.is_awaiting_route(*local))?;
        // An address that waits for its default route would send its SYN into ARP; see `is_awaiting_route`.
        Some((local, connection.join_target(local)?))
    });
    let (local, remote) = addresses.ok_or_else(|| match interface.only_family() {
        Some(family) if family != IpFamily::of(connection.server.ip()) => CommandError::NotAnnounced(family),
        _ => CommandError::NoAddress,
    })?;
    let id = connection.address_id(local);
    Ok(NewSubflow { token: conn.0, local, id, remote, interface: Some(interface.index), backup })
}

/// Addresses and ports of a subflow.
///
/// # Errors
/// The connection has no such subflow.
pub(super) fn subflow_tuple(
    conn: ConnId,
    connection: &ConnEntry,
    subflow: SubflowId,
) -> Result<SubflowTuple, CommandError> {
    let sub = connection.subflow(subflow).ok_or(CommandError::NoSubflow)?;
    Ok(SubflowTuple { token: conn.0, local: sub.local, remote: sub.remote })
}
