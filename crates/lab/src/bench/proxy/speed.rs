//! Case `speed` of `bench proxy`: a file through the proxy over veth pairs, compared with `marline get` into a pipe
//! and with nginx as a proxy.
//!
//! 1. The references read everything and discard it, as the client of the proxy does.
//! 2. The CPU time of the proxy and of nginx is their own, from start to end, without that of their clients.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use marline_core::units::DataSize;
use marline_sys::process::{self, ProcessUsage};
use rustix::process::{Pid, Signal, kill_process};

use super::testbed::{OriginProtocol, ProxyProcess, ProxyTestbed};
use super::{ProxyReport, Threshold};
use crate::interrupt::is_interrupted;
use crate::runner::command::notice;
use crate::server::{TempDir, find_program};
use crate::{LabError, Payload};

/// What is measured; the client of the proxy and of nginx is curl.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SpeedClient {
    Proxy,
    Get,
    Nginx,
}

const DEVICES: [&str; 2] = ["eth0", "eth1"];

pub(super) fn run(report: &mut ProxyReport, runs: u32, size: DataSize) -> Result<(), LabError> {
    let payload = Payload::new(size).map_err(LabError::at_step("a file in memory"))?;
    let gigabytes = size.bytes() as f64 / 1e9;
    for origin in [OriginProtocol::Http, OriginProtocol::H2] {
        for wires in [1, 2] {
            let scheme = if origin == OriginProtocol::Http { "http" } else { "https" };
            let case = format!("speed {scheme}, {wires} wire{}", if wires == 1 { "" } else { "s" });
            let all = [SpeedClient::Proxy, SpeedClient::Get, SpeedClient::Nginx];
            // nginx can use only one link; the first round is a warm-up.
            let contenders = if wires == 1 { &all[..] } else { &all[..2] };
            for run in 0..=runs {
                for position in 0..contenders.len() {
                    let client = contenders[(position + run as usize) % contenders.len()];
                    let names = &DEVICES[..wires];
                    match download(client, names, origin, &payload)? {
                        Ok(_) if run == 0 => {}
                        Ok((time, cpu)) => {
                            notice(&format!("{case} run {run} {client:?}: {:.2} s", time.as_secs_f64()));
                            let speed = size.bytes() as f64 * 8e-6 / time.as_secs_f64();
                            let cpu = cpu.as_secs_f64() / gigabytes;
                            if client != SpeedClient::Nginx {
                                let threshold = Threshold::AtLeast { times: 0.9 };
                                let row = report.row_mut(&case, "Mbit/s", "marline get | cat", threshold);
                                row.add(client == SpeedClient::Proxy, speed, None);
                            }
                            if client != SpeedClient::Get {
                                let row = report.row_mut(&case, "CPU s per GB", "nginx proxy", Threshold::Stated);
                                row.add(client == SpeedClient::Proxy, cpu, None);
                            }
                        }
                        Err(reason) => report.problem(&case, run, &reason),
                    }
                    if is_interrupted() {
                        return Ok(());
                    }
                }
            }
        }
    }
    Ok(())
}

/// One download over new veth pairs: its time, and the CPU time of the program that downloaded.
fn download(
    client: SpeedClient,
    names: &[&str],
    origin: OriginProtocol,
    payload: &Payload,
) -> Result<Result<(Duration, Duration), String>, LabError> {
    let testbed = ProxyTestbed::start_veth(names, &payload.path())?;
    let url = testbed.url(origin);
    let cpu_time = |usage: &ProcessUsage| usage.user + usage.system;
    match client {
        SpeedClient::Proxy => {
            let proxy = ProxyProcess::start(&testbed, names, &[])?;
            let result = run_curl(&testbed, &proxy.proxied_url(&url), payload)?;
            let usage = proxy.stop()?;
            Ok(result.map(|time| (time, cpu_time(&usage))))
        }
        SpeedClient::Get => {
            let program = crate::program::marline()?;
            let links: String = names.iter().map(|name| format!(" --link {name}")).collect();
            let ca = testbed.ca_file().map(|file| format!(" --ca-file {}", file.display())).unwrap_or_default();
            let line = format!("'{}' get --quiet -o -{links}{ca} {url} | cat > /dev/null", program.display());
            let mut command = Command::new("sh");
            command.args(["-c", &line]).env("HOME", "/nonexistent").env("XDG_CONFIG_HOME", "/nonexistent");
            command.stdin(Stdio::null()).stderr(Stdio::null());
            let start = Instant::now();
            let child = testbed.spawn(&mut command)?;
            let usage = process::wait_with_usage(child.id()).map_err(LabError::at_step("wait"))?;
            Ok(match usage.status.success() {
                true => Ok((start.elapsed(), cpu_time(&usage))),
                false => Err(format!("marline get: {}", usage.status)),
            })
        }
        SpeedClient::Nginx => {
            let folder = TempDir::new().map_err(LabError::at_step("directory of nginx"))?;
            std::fs::write(folder.path().join("nginx.conf"), nginx_config(&folder, origin))
                .map_err(LabError::at_step("nginx's configuration"))?;
            let mut command = Command::new(find_program("nginx").unwrap_or_else(|| "nginx".into()));
            command.arg("-p").arg(folder.path()).arg("-c").arg(folder.path().join("nginx.conf"));
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let child = testbed.spawn(&mut command)?;
            let path = url.split('/').next_back().unwrap_or_default();
            let result = run_curl(&testbed, &format!("http://127.0.0.1:8481/{path}"), payload)?;
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
            let usage = process::wait_with_usage(child.id()).map_err(LabError::at_step("wait"))?;
            Ok(result.map(|time| (time, cpu_time(&usage))))
        }
    }
}

/// Downloads with curl to `/dev/null`. curl retries until the proxy listens, and its time counts from the
/// successful attempt.
fn run_curl(testbed: &ProxyTestbed, url: &str, payload: &Payload) -> Result<Result<Duration, String>, LabError> {
    let mut command = Command::new("curl");
    command.args(["-q", "-sS", "--fail", "--retry", "20", "--retry-delay", "1", "--retry-connrefused"]);
    command.args(["-o", "/dev/null", "-w", "%{size_download} %{time_total}", url]);
    command.env_remove("http_proxy").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let child = testbed.spawn(&mut command)?;
    let output = child.wait_with_output().map_err(LabError::at_step("curl"))?;
    let output_text = String::from_utf8_lossy(&output.stdout).into_owned();
    let expected_size = std::fs::metadata(payload.path()).map_or(0, |file| file.len());
    let mut fields = output_text.split(' ');
    let size = fields.next().and_then(|field| field.parse::<u64>().ok());
    let time = fields.next().and_then(|field| field.parse().ok()).map(Duration::from_secs_f64);
    Ok(match (output.status.success(), size == Some(expected_size), time) {
        (true, true, Some(took)) => Ok(took),
        (status, ..) => Err(format!("curl: {status}, {output_text} of {expected_size} bytes")),
    })
}

/// Configuration of nginx as a proxy without a cache.
fn nginx_config(folder: &TempDir, origin: OriginProtocol) -> String {
    let path = folder.path().display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("{kind}_temp_path {path}/{kind};\n"))
        .collect();
    let scheme = if origin == OriginProtocol::Http { "http" } else { "https" };
    format!(
        "user root root; daemon off; master_process off; pid {path}/nginx.pid; error_log {path}/error.log;\n\
         events {{ worker_connections 512; }}\n\
         http {{ {temporary} access_log off;\n\
         server {{ listen 127.0.0.1:8481; location / {{\n\
         proxy_pass {scheme}://10.99.0.1; proxy_http_version 1.1; proxy_set_header Connection \"\";\n\
         proxy_ssl_verify off; proxy_cache off; proxy_max_temp_file_size 0; }} }} }}\n"
    )
}
