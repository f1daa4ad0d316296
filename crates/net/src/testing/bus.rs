//! A private `dbus-daemon`, and a stand-in for NetworkManager on it.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::links::{Call, Service};

/// A private bus that ends with the test.
pub struct DbusDaemon {
    child: Child,
    root: tempfile::TempDir,
}

impl DbusDaemon {
    /// Starts the bus; `None`, with a message, if `dbus-daemon` is not installed.
    pub fn start() -> Option<Self> {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("run/dbus")).unwrap();
        let socket = root.path().join("run/dbus/system_bus_socket");
        let child = Command::new("dbus-daemon")
            .args(["--session", "--nofork", "--nopidfile", "--nosyslog"])
            .arg(format!("--address=unix:path={}", socket.display()))
            .stderr(Stdio::null())
            .spawn();
        let Ok(child) = child else {
            eprintln!("skipped: needs dbus-daemon (Debian: dbus)");
            return None;
        };
        let started = Instant::now();
        while UnixStream::connect(&socket).is_err() {
            assert!(started.elapsed() < Duration::from_secs(10), "dbus-daemon does not listen");
            thread::sleep(Duration::from_millis(5));
        }
        Some(Self { child, root })
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.root.path().join("run/dbus/system_bus_socket")
    }

    /// Starts a stand-in for NetworkManager that reports the modem as metered. It stops when the returned value is
    /// dropped.
    pub fn network_manager(&self) -> impl Drop + use<> {
        std::fs::create_dir_all(self.root().join("run/NetworkManager")).unwrap();
        Service::start(&self.socket(), "org.freedesktop.NetworkManager", network_manager)
    }

    /// Root directory below which the bus has its usual path.
    pub fn root(&self) -> &Path {
        self.root.path()
    }
}

impl Drop for DbusDaemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Replies of a NetworkManager with one metered modem, `wwan0`.
pub(crate) fn network_manager(call: &Call) -> Option<(&'static str, Vec<u8>)> {
    let arguments: Vec<&str> = call.arguments.iter().map(String::as_str).collect();
    Some(match (call.object.as_str(), call.method.as_str(), &arguments[..]) {
        ("/org/freedesktop/NetworkManager", "GetDeviceByIpIface", ["wwan0"]) => ("o", text("/nm/Devices/1")),
        ("/nm/Devices/1", "Get", ["org.freedesktop.NetworkManager.Device", "Metered"]) => {
            ("v", [&[1, b'u', 0, 0][..], &1_u32.to_le_bytes()].concat())
        }
        ("/nm/Devices/1", "Get", [_, "Ip4Config"]) => {
            ("v", [&[1, b'o', 0, 0][..], &text("/nm/IP4Config/1")].concat())
        }
        ("/nm/Devices/1", "Get", [_, "Ip6Config"]) => {
            ("v", [&[1, b'o', 0, 0][..], &text("/nm/IP6Config/1")].concat())
        }
        ("/nm/IP4Config/1", "Get", [_, "NameserverData"]) => {
            // aa{sv} with one dictionary: address = 198.51.100.53.
            let value = [&[1, b's', 0][..], &[0], &text("198.51.100.53")].concat();
            let entry = [text("address"), value].concat();
            let inner = [&(entry.len() as u32).to_le_bytes()[..], &entry].concat();
            let signature = [&[6][..], b"aa{sv}\0"].concat();
            // Signature of 8 bytes, outer length at 8, inner length at 12, entry at 16.
            ("v", [&signature[..], &(inner.len() as u32).to_le_bytes(), &inner].concat())
        }
        ("/nm/IP6Config/1", "Get", [_, "Nameservers"]) => {
            let address = "2001:db8::53".parse::<std::net::Ipv6Addr>().unwrap().octets();
            let inner = [&16_u32.to_le_bytes()[..], &address].concat();
            let signature = [&[3][..], b"aay\0"].concat();
            ("v", [&signature[..], &[0; 3], &(inner.len() as u32).to_le_bytes(), &inner].concat())
        }
        _ => return None,
    })
}

/// A D-Bus string: length, bytes and terminating zero.
fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_le_bytes()[..], text.as_bytes(), &[0]].concat()
}
