//! Listening sockets for MPTCP on port 80, opened by the lab and passed to nginx as its standard input and output.
//!
//! 1. nginx adopts listening sockets that the variable `NGINX` names (its mechanism for replacing its own
//!    executable without interruption), each for the `listen` line of the same address. So a stock nginx without
//!    MPTCP support serves MPTCP, and no library is preloaded.
//! 2. A listening MPTCP socket also accepts plain TCP.
//! 3. The congestion control is also set on the listening socket, because routes apply it to the first subflow
//!    only. As soon as the server sets any socket option of a connection (nginx does), the kernel gives subflows
//!    that join later the algorithm of the MPTCP socket, which is the namespace's default (measured).
//! 4. Port 443 stays plain TCP: a server without MPTCP on the same address, for clients that need one.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;

use socket2::{Domain, Protocol, Socket, Type};

use crate::Congestion;
use crate::network::Namespaces;

/// Opens the sockets and passes them to nginx's command; see the [module documentation](self).
pub(super) fn pass_listeners(command: &mut Command, networks: &Namespaces) -> io::Result<()> {
    let congestion = networks.congestion.requested;
    let v4 = networks.server.run(|| listen((Ipv4Addr::UNSPECIFIED, 80).into(), congestion))?;
    command.stdin(v4);
    let mut sockets = "0;".to_owned();
    if Path::new("/proc/net/if_inet6").exists() {
        command.stdout(networks.server.run(|| listen((Ipv6Addr::UNSPECIFIED, 80).into(), congestion))?);
        sockets.push_str("1;");
    }
    command.env("NGINX", sockets);
    Ok(())
}

fn listen(address: SocketAddr, congestion: Congestion) -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::MPTCP))?;
    // The kernel may lack this algorithm; `CongestionReport` shows that.
    let _ = socket.set_tcp_congestion(congestion.name().as_bytes());
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// The default of nginx.
const BACKLOG: i32 = 511;
