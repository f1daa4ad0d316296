//! Port 80 for MPTCP, opened by the lab and handed to nginx.
//!
//! In: nginx's command, before it is started. Out: the same with listening sockets as its standard input and output.
//!
//! 1. nginx takes listening sockets over that are named in its variable `NGINX` (its way of replacing its own program
//!    without a pause), each for the `listen` line of the same address. So a stock nginx that knows nothing of MPTCP
//!    serves it, and no library is preloaded.
//! 2. A listening MPTCP socket accepts plain TCP as well.
//! 3. The congestion control is set on the listening socket too: the routes give it to the first subflow only. As soon as
//!    the server sets any option of a connection (nginx does), the kernel gives subflows that join later what the MPTCP
//!    socket has, which is the namespace's default (measured).
//! 4. Port 443 stays plain TCP: a server without MPTCP on the same address, for those who want one.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;

use socket2::{Domain, Protocol, Socket, Type};

use crate::Congestion;
use crate::network::Namespaces;

/// See the [module](self).
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
    // A kernel that has none of this name says so elsewhere.
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

/// As nginx's own.
const BACKLOG: i32 = 511;
