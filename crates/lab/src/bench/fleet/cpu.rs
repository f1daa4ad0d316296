//! CPU time of the relay per gigabyte of upload, compared with haproxy in TLS mode, without emulation.
//!
//! ```text
//! socat (TLS with client certificate) ─▶ marline relay | haproxy ─▶ socat, which discards the data
//! ```
//!
//! 1. Both run in the same network namespace and in turns, with one thread each, TLS 1.3 and the same certificates.
//!    The client uses TCP: the cost of MPTCP is in the kernel, and the same for both.
//! 2. haproxy forwards TCP to a fixed server; the relay first reads a CONNECT. Both verify the client's
//!    certificate.
//! 3. CPU time is that of the process in user and kernel mode (`/proc/PID/stat`), before and after.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use marline_sim::spec::LinkSpec;

use super::super::report::{ReportTable, Threshold};
use super::{FleetBench, parse_link};
use crate::fleet::{FleetProcess, LabFleet};
use crate::interrupt::is_interrupted;
use crate::server::find_program;
use crate::{Lab, LabError, runner::command::notice};

/// Checks that haproxy and socat are installed.
pub(super) fn check_installed() -> Result<(), LabError> {
    for (program, package) in [("haproxy", "haproxy"), ("socat", "socat")] {
        find_program(program).ok_or(LabError::MissingProgram { program: program.into(), package })?;
    }
    Ok(())
}

/// Addresses of relay and haproxy, and of the server that both forward to.
const RELAY_ADDRESS: &str = "10.99.0.11:4443";
const HAPROXY_ADDRESS: &str = "10.99.0.11:4500";
const SINK_ADDRESS: &str = "10.99.0.1:9000";

pub(super) fn run(bench: &FleetBench, report: &mut ReportTable) -> Result<(), LabError> {
    if !bench.is_selected("cpu", "up") {
        return Ok(());
    }
    let links: [LinkSpec; 1] = [parse_link("l0,kind=ethernet,rate=100Mbit/s")];
    let fleet = LabFleet::start(&bench.fleet_config(&links, 1, 0))?;
    let folder = fleet.folder();
    let start_at_server = |name: &str, command: &mut Command| {
        FleetProcess::start(name, folder, command, |command| fleet.lab().spawn_at_server(command))
    };
    let mut sink = Command::new("socat");
    let (host, port) = SINK_ADDRESS.split_once(':').unwrap_or_default();
    sink.args([
        "-dd",
        "-u",
        "-b",
        "262144",
        &format!("TCP-LISTEN:{port},bind={host},fork,reuseaddr"),
        "OPEN:/dev/null",
    ]);
    let _sink = start_at_server("sink", &mut sink)?.wait_until_ready("listening on")?;
    let haproxy = start_haproxy(folder, &start_at_server)?;
    let relay = fleet.relay(0).ok_or_else(|| LabError::Server("there is no relay".into()))?;
    let threshold = Threshold::AtMostTimes(1.5, vec!["haproxy".into()]);
    let gigabytes = bench.cpu_bytes as f64 / 1e9;
    for run in 0..bench.runs {
        for (name, process, address) in [("marline", relay, RELAY_ADDRESS), ("haproxy", &haproxy, HAPROXY_ADDRESS)]
        {
            if is_interrupted() {
                return Ok(());
            }
            let (cpu_before, start) = (process.cpu_time(), Instant::now());
            let result = send_zeros(fleet.lab(), folder, address, name == "marline", bench.cpu_bytes);
            // Data that is still in socket buffers has to be forwarded before the CPU time is read.
            std::thread::sleep(SETTLE_TIME);
            match result {
                Err(error) => report.problem("cpu up", name, run, &error),
                Ok(()) => {
                    let cpu = (process.cpu_time() - cpu_before).as_secs_f64();
                    report.add("cpu up", "CPU s per GB", ("marline", &threshold), name, cpu / gigabytes);
                    let seconds = start.elapsed().saturating_sub(SETTLE_TIME).as_secs_f64();
                    notice(&format!("cpu up: {name}: {:.0} Mbit/s", gigabytes * 8000.0 / seconds));
                }
            }
        }
    }
    Ok(())
}

/// Our choice: much longer than it takes to empty the buffers of loopback connections.
const SETTLE_TIME: Duration = Duration::from_millis(500);

/// Sends `bytes` zeros through the proxy at `address`; an error if not all were accepted.
fn send_zeros(lab: &Lab, folder: &Path, address: &str, uses_connect: bool, bytes: u64) -> io::Result<()> {
    let head = if uses_connect {
        format!("CONNECT {SINK_ADDRESS} HTTP/1.1\\r\\nHost: {SINK_ADDRESS}\\r\\n\\r\\n")
    } else {
        String::new()
    };
    let tls =
        format!("OPENSSL:{address},cert=edge.pem,key=edge.key,cafile=ca.pem,openssl-min-proto-version=TLS1.3");
    let script = format!("{{ printf '{head}'; head -c {bytes} /dev/zero; }} | socat -u -b 262144 - {tls}");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).current_dir(folder).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let output = lab.spawn_at_server(&mut command)?.wait_with_output()?;
    let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() && stderr.is_empty() {
        return Ok(());
    }
    Err(io::Error::other(format!("the client: {}: {stderr}", output.status)))
}

/// Starts haproxy with the relay's certificate.
fn start_haproxy(
    folder: &Path,
    start: &dyn Fn(&str, &mut Command) -> Result<FleetProcess, LabError>,
) -> Result<FleetProcess, LabError> {
    let step = || LabError::at_step("haproxy's files");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).map_err(step());
    std::fs::write(folder.join("haproxy.pem"), read("relay-1.pem")? + &read("relay-1.key")?).map_err(step())?;
    std::fs::write(folder.join("haproxy.cfg"), haproxy_config(folder)).map_err(step())?;
    let program = find_program("haproxy")
        .ok_or(LabError::MissingProgram { program: "haproxy".into(), package: "haproxy" })?;
    let mut command = Command::new(program);
    command.args(["-db", "-f"]).arg(folder.join("haproxy.cfg"));
    let mut haproxy = start("haproxy", &mut command)?;
    // haproxy logs nothing when it is ready.
    std::thread::sleep(SETTLE_TIME);
    match haproxy.exit_reason() {
        Some(reason) => Err(LabError::Server(format!("haproxy: {reason}"))),
        None => Ok(haproxy),
    }
}

fn haproxy_config(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "global\n  nbthread 1\n\
         defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n\
         frontend edges\n  bind {HAPROXY_ADDRESS} ssl crt {folder}/haproxy.pem ca-file {folder}/ca.pem verify required ssl-min-ver TLSv1.3\n\
         \x20 default_backend sink\n\
         backend sink\n  server sink {SINK_ADDRESS}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn haproxy_is_configured_like_the_relay() {
        let text = haproxy_config(Path::new("/place"));
        for setting in
            ["nbthread 1", "verify required", "ssl-min-ver TLSv1.3", "crt /place/haproxy.pem", SINK_ADDRESS]
        {
            assert!(text.contains(setting), "{setting}: {text}");
        }
    }
}
