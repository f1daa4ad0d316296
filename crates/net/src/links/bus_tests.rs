//! The bus client against a real `dbus-daemon`, with services that the tests play, and against broken ones.

use std::io::{Read, Write};
use std::net::IpAddr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::dbus::tests::{Call, Service};
use super::dbus::{Bus, Value};
use super::metered::ask_at;
use super::{Metered, MeteredSource};

/// A private bus, which ends with the test.
pub(crate) struct Daemon {
    child: Child,
    root: tempfile::TempDir,
}

impl Daemon {
    pub(crate) fn start() -> Option<Self> {
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

    fn socket(&self) -> PathBuf {
        self.root.path().join("run/dbus/system_bus_socket")
    }

    /// NetworkManager begins to work, and calls the modem metered. It ends with what is given.
    pub(crate) fn network_manager(&self) -> impl Drop + use<> {
        std::fs::create_dir_all(self.root().join("run/NetworkManager")).unwrap();
        Service::start(&self.socket(), "org.freedesktop.NetworkManager", network_manager)
    }

    /// The bus is at its place below this directory.
    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const LIMIT: Duration = Duration::from_secs(5);

/// NetworkManager with one metered modem, `wwan0`.
fn network_manager(call: &Call) -> Option<(&'static str, Vec<u8>)> {
    let words: Vec<&str> = call.arguments.iter().map(String::as_str).collect();
    Some(match (call.object.as_str(), call.method.as_str(), &words[..]) {
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

/// systemd-resolved with a server for the link number 7.
fn resolved(call: &Call) -> Option<(&'static str, Vec<u8>)> {
    if call.object != "/org/freedesktop/resolve1" || call.arguments.last()? != "DNS" {
        return None;
    }
    let entry = |index: u32, address: [u8; 4]| {
        [&index.to_le_bytes()[..], &2_u32.to_le_bytes(), &4_u32.to_le_bytes(), &address].concat()
    };
    let entries = [entry(6, [10, 0, 0, 1]), entry(7, [198, 51, 100, 1])].concat();
    let signature = [&[8][..], b"a(iiay)\0"].concat();
    // Signature of 10 bytes, length at 12, entries at 16; each has 16 bytes.
    Some(("v", [&[7][..], &signature[1..], &[0; 3], &(entries.len() as u32).to_le_bytes(), &entries].concat()))
}

/// A string with its length and its zero.
fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_le_bytes()[..], text.as_bytes(), &[0]].concat()
}

#[test]
fn networkmanager_says_which_link_is_metered() {
    let Some(daemon) = Daemon::start() else { return };
    let _service = Service::start(&daemon.socket(), "org.freedesktop.NetworkManager", network_manager);
    let answers = ask_at(&daemon.socket(), vec!["wwan0".into(), "eth0".into()]);
    let metered = Metered { metered: true, source: MeteredSource::NetworkManager };
    assert_eq!(answers.get("wwan0"), Some(&Some(metered)));
    assert_eq!(answers.get("eth0"), None, "the service knows no such device");
}

#[test]
fn an_absent_service_is_an_error_and_an_absent_bus_too() {
    let Some(daemon) = Daemon::start() else { return };
    let mut bus = Bus::connect(&daemon.socket(), LIMIT).unwrap();
    let error = bus.property("org.freedesktop.NetworkManager", "/x", "a.b", "C").unwrap_err();
    assert_eq!(error.to_string(), "org.freedesktop.DBus.Error.NameHasNoOwner");
    let names = bus
        .call("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "ListNames", &[])
        .unwrap();
    assert!(names[0].list().contains(&Value::Text("org.freedesktop.DBus".into())), "the connection lives on");
    assert!(Bus::connect(Path::new("/nonexistent/socket"), LIMIT).is_err());
    assert!(ask_at(Path::new("/nonexistent/socket"), vec!["eth0".into()]).is_empty());
}

#[test]
fn a_links_name_servers_come_from_the_bus() {
    let Some(daemon) = Daemon::start() else { return };
    let servers = |name: &str, index| {
        let link = crate::dns::tests::link(name, index, &["198.51.100.2/24", "2001:db8::2/64"]);
        crate::dns::tests::servers_in(daemon.root.path(), &link)
    };
    let addresses = |texts: &[&str]| texts.iter().map(|t| t.parse::<IpAddr>().unwrap()).collect::<Vec<_>>();
    let _manager = Service::start(&daemon.socket(), "org.freedesktop.NetworkManager", network_manager);
    assert_eq!(
        servers("wwan0", 7),
        addresses(&[]),
        "the bus is not asked where nothing shows that the service runs"
    );
    std::fs::create_dir_all(daemon.root.path().join("run/NetworkManager")).unwrap();
    assert_eq!(servers("wwan0", 7), addresses(&["198.51.100.53", "2001:db8::53"]));
    assert_eq!(servers("eth0", 8), addresses(&[]));
    std::fs::create_dir_all(daemon.root.path().join("run/systemd/resolve")).unwrap();
    let _resolved = Service::start(&daemon.socket(), "org.freedesktop.resolve1", resolved);
    assert_eq!(servers("wwan0", 7), addresses(&["198.51.100.1"]), "systemd-resolved before NetworkManager");
}

/// A bus that does this with each connection.
fn broken(behaviour: impl Fn(&mut UnixStream) + Send + 'static) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(directory.path().join("bus")).unwrap();
    thread::spawn(move || {
        if let Ok((mut stream, _)) = listener.accept() {
            behaviour(&mut stream);
            // The other end decides when it is over.
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    directory
}

#[test]
fn a_bus_that_hangs_refuses_or_talks_nonsense_is_an_error() {
    let behaviours: [fn(&mut UnixStream); 6] = [
        |_| {},
        |stream| stream.write_all(b"REJECTED EXTERNAL\r\n").unwrap(),
        |stream| stream.write_all(&[b'x'; 4096]).unwrap(),
        |stream| stream.write_all(b"OK 1234\r\nnonsense that is no message at all").unwrap(),
        |stream| {
            stream
                .write_all(&[&b"OK 1234\r\n"[..], b"l\x02\0\x01\xff\xff\xff\xff\0\0\0\0\xff\xff\xff\xff"].concat())
                .unwrap()
        },
        |stream| stream.shutdown(std::net::Shutdown::Write).unwrap(),
    ];
    for (number, behaviour) in behaviours.into_iter().enumerate() {
        let directory = broken(behaviour);
        let result = Bus::connect(&directory.path().join("bus"), Duration::from_millis(100));
        assert!(result.is_err(), "behaviour {number}");
    }
}
