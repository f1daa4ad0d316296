//! Tests of the D-Bus client against a real `dbus-daemon` with simulated services, and against broken buses.

use std::io::{Read, Write};
use std::net::IpAddr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::dbus::{Bus, Value};
use super::metered::query_bus;
use super::{Call, MeteredSource, MeteredStatus, Service};
use crate::testing::DbusDaemon;
use crate::testing::bus::network_manager;

const TIMEOUT: Duration = Duration::from_secs(5);

/// A simulated systemd-resolved with a name server for the link with index 7.
fn resolve1(call: &Call) -> Option<(&'static str, Vec<u8>)> {
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

#[test]
fn network_manager_reports_which_link_is_metered() {
    let Some(daemon) = DbusDaemon::start() else { return };
    let _service = Service::start(&daemon.socket(), "org.freedesktop.NetworkManager", network_manager);
    let replies = query_bus(&daemon.socket(), vec!["wwan0".into(), "eth0".into()]);
    let metered = MeteredStatus { metered: true, source: MeteredSource::NetworkManager };
    assert_eq!(replies.get("wwan0"), Some(&Some(metered)));
    assert_eq!(replies.get("eth0"), None, "the service knows no such device");
}

#[test]
fn an_absent_service_or_bus_is_an_error() {
    let Some(daemon) = DbusDaemon::start() else { return };
    let mut bus = Bus::connect(&daemon.socket(), TIMEOUT).unwrap();
    let error = bus.property("org.freedesktop.NetworkManager", "/x", "a.b", "C").unwrap_err();
    assert_eq!(error.to_string(), "org.freedesktop.DBus.Error.NameHasNoOwner");
    let names = bus
        .call("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "ListNames", &[])
        .unwrap();
    assert!(
        names[0].as_list().contains(&Value::Text("org.freedesktop.DBus".into())),
        "the connection remains usable"
    );
    assert!(Bus::connect(Path::new("/nonexistent/socket"), TIMEOUT).is_err());
    assert!(query_bus(Path::new("/nonexistent/socket"), vec!["eth0".into()]).is_empty());
}

#[test]
fn name_servers_of_a_link_are_read_from_the_bus() {
    let Some(daemon) = DbusDaemon::start() else { return };
    let servers = |name: &str, index| {
        let link = crate::dns::tests::test_link(name, index, &["198.51.100.2/24", "2001:db8::2/64"]);
        crate::dns::tests::servers_in(daemon.root(), &link)
    };
    let addresses = |texts: &[&str]| texts.iter().map(|t| t.parse::<IpAddr>().unwrap()).collect::<Vec<_>>();
    let _manager = Service::start(&daemon.socket(), "org.freedesktop.NetworkManager", network_manager);
    assert_eq!(
        servers("wwan0", 7),
        addresses(&[]),
        "the bus is not queried if no file shows that the service runs"
    );
    std::fs::create_dir_all(daemon.root().join("run/NetworkManager")).unwrap();
    assert_eq!(servers("wwan0", 7), addresses(&["198.51.100.53", "2001:db8::53"]));
    assert_eq!(servers("eth0", 8), addresses(&[]));
    std::fs::create_dir_all(daemon.root().join("run/systemd/resolve")).unwrap();
    let _resolved = Service::start(&daemon.socket(), "org.freedesktop.resolve1", resolve1);
    assert_eq!(servers("wwan0", 7), addresses(&["198.51.100.1"]), "systemd-resolved before NetworkManager");
}

/// A bus that treats one connection like this.
fn broken_bus(behaviour: impl Fn(&mut UnixStream) + Send + 'static) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(directory.path().join("bus")).unwrap();
    thread::spawn(move || {
        if let Ok((mut stream, _)) = listener.accept() {
            behaviour(&mut stream);
            // The peer decides when to close.
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    directory
}

#[test]
fn a_bus_that_hangs_refuses_or_sends_garbage_is_an_error() {
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
        let directory = broken_bus(behaviour);
        let result = Bus::connect(&directory.path().join("bus"), Duration::from_millis(100));
        assert!(result.is_err(), "behaviour {number}");
    }
}
