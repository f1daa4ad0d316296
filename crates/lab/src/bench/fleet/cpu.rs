//! The relay's processor time for a gigabyte of upload, beside haproxy's in TLS mode, without any emulation.
//!
//! ```text
//! socat (TLS, client's certificate) ─▶ marline relay | haproxy ─▶ socat, which throws it away
//! ```
//!
//! 1. Both in the same run and the same network namespace, in turns, one thread each, TLS 1.3 with the same certificates, the
//!    same client over TCP: MPTCP's own cost would be the kernel's, and the same for both.
//! 2. haproxy forwards TCP to a fixed server; the relay reads a CONNECT before it. Both verify the client's certificate.
//! 3. Processor time is the process's own with the kernel's on its behalf (`/proc/PID/stat`), before and after.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use marline_sim::spec::LinkSpec;

use super::super::sheet::{Floor, Sheet};
use super::{Bench, is_stopped, link};
use crate::fleet::{Fleet, Member};
use crate::server::find;
use crate::{Lab, LabError, runner::command::say};

pub(super) fn check_installed() -> Result<(), LabError> {
    for (program, package) in [("haproxy", "haproxy"), ("socat", "socat")] {
        find(program).ok_or(LabError::Missing { program: program.into(), package })?;
    }
    Ok(())
}

/// Where each listens, and where both send to.
const RELAY: &str = "10.99.0.11:4443";
const HAPROXY: &str = "10.99.0.11:4500";
const SINK: &str = "10.99.0.1:9000";

pub(super) fn run(bench: &Bench, sheet: &mut Sheet) -> Result<(), LabError> {
    if !bench.wants("cpu", "up") {
        return Ok(());
    }
    let links: [LinkSpec; 1] = [link("l0,kind=ethernet,rate=100Mbit/s")];
    let fleet = Fleet::start(&bench.setting(&links, 1, 0))?;
    let folder = fleet.folder();
    let at_server = |name: &str, command: &mut Command| {
        Member::start(name, folder, command, |command| fleet.lab().spawn_at_server(command))
    };
    let mut sink = Command::new("socat");
    let (host, port) = SINK.split_once(':').unwrap_or_default();
    sink.args([
        "-dd",
        "-u",
        "-b",
        "262144",
        &format!("TCP-LISTEN:{port},bind={host},fork,reuseaddr"),
        "OPEN:/dev/null",
    ]);
    let _sink = at_server("sink", &mut sink)?.ready("listening on")?;
    let haproxy = haproxy(folder, &at_server)?;
    let relay = fleet.relay_at(0).ok_or_else(|| LabError::Server("there is no relay".into()))?;
    let floor = Floor::AtMostTimes(1.5, vec!["haproxy".into()]);
    let gigabytes = bench.volume as f64 / 1e9;
    for run in 0..bench.runs {
        for (who, member, at) in [("marline", relay, RELAY), ("haproxy", &haproxy, HAPROXY)] {
            if is_stopped() {
                return Ok(());
            }
            let (before, began) = (member.cpu(), Instant::now());
            let sent = send(fleet.lab(), folder, at, who == "marline", bench.volume);
            // What is in the sockets still is carried.
            std::thread::sleep(SETTLING);
            match sent {
                Err(error) => sheet.problem("cpu up", who, run, &error),
                Ok(()) => {
                    let cpu = (member.cpu() - before).as_secs_f64();
                    sheet.add("cpu up", "CPU s per GB", ("marline", &floor), who, cpu / gigabytes);
                    let seconds = began.elapsed().saturating_sub(SETTLING).as_secs_f64();
                    say(&format!("cpu up: {who}: {:.0} Mbit/s", gigabytes * 8000.0 / seconds));
                }
            }
        }
    }
    Ok(())
}

/// chosen: loopback's buffers are empty long before.
const SETTLING: Duration = Duration::from_millis(500);

/// Sends so many zeros through who listens there; an error if not all were taken.
fn send(lab: &Lab, folder: &Path, at: &str, connect: bool, bytes: u64) -> io::Result<()> {
    let head =
        if connect { format!("CONNECT {SINK} HTTP/1.1\\r\\nHost: {SINK}\\r\\n\\r\\n") } else { String::new() };
    let tls = format!("OPENSSL:{at},cert=edge.pem,key=edge.key,cafile=ca.pem,openssl-min-proto-version=TLS1.3");
    let script = format!("{{ printf '{head}'; head -c {bytes} /dev/zero; }} | socat -u -b 262144 - {tls}");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).current_dir(folder).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let output = lab.spawn_at_server(&mut command)?.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() && said.is_empty() {
        return Ok(());
    }
    Err(io::Error::other(format!("the client: {}: {said}", output.status)))
}

/// haproxy with the relay's own certificate.
fn haproxy(
    folder: &Path,
    start: &dyn Fn(&str, &mut Command) -> Result<Member, LabError>,
) -> Result<Member, LabError> {
    let step = || LabError::at("haproxy's files");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).map_err(step());
    std::fs::write(folder.join("haproxy.pem"), read("relay-1.pem")? + &read("relay-1.key")?).map_err(step())?;
    std::fs::write(folder.join("haproxy.cfg"), configuration(folder)).map_err(step())?;
    let program = find("haproxy").ok_or(LabError::Missing { program: "haproxy".into(), package: "haproxy" })?;
    let mut command = Command::new(program);
    command.args(["-db", "-f"]).arg(folder.join("haproxy.cfg"));
    let mut haproxy = start("haproxy", &mut command)?;
    // It says nothing when it listens.
    std::thread::sleep(SETTLING);
    match haproxy.has_ended() {
        Some(why) => Err(LabError::Server(format!("haproxy: {why}"))),
        None => Ok(haproxy),
    }
}

fn configuration(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "global\n  nbthread 1\n\
         defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n\
         frontend edges\n  bind {HAPROXY} ssl crt {folder}/haproxy.pem ca-file {folder}/ca.pem verify required ssl-min-ver TLSv1.3\n\
         \x20 default_backend sink\n\
         backend sink\n  server sink {SINK}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn haproxy_does_what_the_relay_does() {
        let text = configuration(Path::new("/place"));
        for word in ["nbthread 1", "verify required", "ssl-min-ver TLSv1.3", "crt /place/haproxy.pem", SINK] {
            assert!(text.contains(word), "{word}: {text}");
        }
    }
}
