//! A file through the proxy on plain wires, beside `marline get` into a pipe and nginx as a proxy.
//!
//! 1. The reference reads as the proxy's client does: everything, into nothing.
//! 2. The proxy's and nginx's processor time are their own, from their start to their end, without their clients'.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use marline_core::units::DataSize;
use marline_sys::process::{self, Usage};
use rustix::process::{Pid, Signal, kill_process};

use super::world::{Origin, Proxy, World};
use super::{Floor, Sheet, is_stopped};
use crate::runner::command::say;
use crate::server::{Folder, find};
use crate::{LabError, Payload};

/// Who brings the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Who {
    Proxy,
    Get,
    Nginx,
}

const WIRES: [&str; 2] = ["eth0", "eth1"];

pub(super) fn run(sheet: &mut Sheet, runs: u32, size: DataSize) -> Result<(), LabError> {
    let payload = Payload::new(size).map_err(LabError::at("a file in memory"))?;
    let gigabytes = size.bytes() as f64 / 1e9;
    for origin in [Origin::Http, Origin::H2] {
        for wires in [1, 2] {
            let scheme = if origin == Origin::Http { "http" } else { "https" };
            let case = format!("speed {scheme}, {wires} wire{}", if wires == 1 { "" } else { "s" });
            let all = [Who::Proxy, Who::Get, Who::Nginx];
            // nginx knows one wire; the first round warms up.
            let contenders = if wires == 1 { &all[..] } else { &all[..2] };
            for run in 0..=runs {
                for turn in 0..contenders.len() {
                    let who = contenders[(turn + run as usize) % contenders.len()];
                    let names = &WIRES[..wires];
                    match download(who, names, origin, &payload)? {
                        Ok(_) if run == 0 => {}
                        Ok((took, cpu)) => {
                            say(&format!("{case} run {run} {who:?}: {:.2} s", took.as_secs_f64()));
                            let speed = size.bytes() as f64 * 8e-6 / took.as_secs_f64();
                            let cpu = cpu.as_secs_f64() / gigabytes;
                            if who != Who::Nginx {
                                let floor = Floor::AtLeast { times: 0.9 };
                                let row = sheet.row(&case, "Mbit/s", "marline get | cat", floor);
                                row.add(who == Who::Proxy, speed, None);
                            }
                            if who != Who::Get {
                                let row = sheet.row(&case, "CPU s per GB", "nginx proxy", Floor::Stated);
                                row.add(who == Who::Proxy, cpu, None);
                            }
                        }
                        Err(why) => sheet.problem(&case, run, &why),
                    }
                    if is_stopped() {
                        return Ok(());
                    }
                }
            }
        }
    }
    Ok(())
}

/// One download on fresh wires: how long it took, and the processor time of who brought it.
fn download(
    who: Who,
    names: &[&str],
    origin: Origin,
    payload: &Payload,
) -> Result<Result<(Duration, Duration), String>, LabError> {
    let world = World::wires(names, &payload.path())?;
    let url = world.url(origin);
    let cpu = |usage: &Usage| usage.user + usage.system;
    match who {
        Who::Proxy => {
            let proxy = Proxy::start(&world, names, &[])?;
            let taken = curl(&world, &proxy.of(&url), payload)?;
            let usage = proxy.end()?;
            Ok(taken.map(|took| (took, cpu(&usage))))
        }
        Who::Get => {
            let program = crate::program::marline()?;
            let links: String = names.iter().map(|name| format!(" --link {name}")).collect();
            let ca = world.authority().map(|file| format!(" --ca-file {}", file.display())).unwrap_or_default();
            let line = format!("'{}' get --quiet -o -{links}{ca} {url} | cat > /dev/null", program.display());
            let mut command = Command::new("sh");
            command.args(["-c", &line]).env("HOME", "/nonexistent").env("XDG_CONFIG_HOME", "/nonexistent");
            command.stdin(Stdio::null()).stderr(Stdio::null());
            let began = Instant::now();
            let child = world.spawn(&mut command)?;
            let usage = process::wait(child.id()).map_err(LabError::at("wait"))?;
            Ok(match usage.status.success() {
                true => Ok((began.elapsed(), cpu(&usage))),
                false => Err(format!("marline get: {}", usage.status)),
            })
        }
        Who::Nginx => {
            let folder = Folder::new().map_err(LabError::at("a place for nginx"))?;
            std::fs::write(folder.path().join("nginx.conf"), configuration(&folder, origin))
                .map_err(LabError::at("nginx's configuration"))?;
            let mut command = Command::new(find("nginx").unwrap_or_else(|| "nginx".into()));
            command.arg("-p").arg(folder.path()).arg("-c").arg(folder.path().join("nginx.conf"));
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let child = world.spawn(&mut command)?;
            let path = url.split('/').next_back().unwrap_or_default();
            let taken = curl(&world, &format!("http://127.0.0.1:8481/{path}"), payload)?;
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
            let usage = process::wait(child.id()).map_err(LabError::at("wait"))?;
            Ok(taken.map(|took| (took, cpu(&usage))))
        }
    }
}

/// curl into nothing. It tries again while nobody listens yet, and counts from when somebody does.
fn curl(world: &World, url: &str, payload: &Payload) -> Result<Result<Duration, String>, LabError> {
    let mut command = Command::new("curl");
    command.args(["-q", "-sS", "--fail", "--retry", "20", "--retry-delay", "1", "--retry-connrefused"]);
    command.args(["-o", "/dev/null", "-w", "%{size_download} %{time_total}", url]);
    command.env_remove("http_proxy").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let child = world.spawn(&mut command)?;
    let output = child.wait_with_output().map_err(LabError::at("curl"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let whole = std::fs::metadata(payload.path()).map_or(0, |file| file.len());
    let mut words = said.split(' ');
    let size = words.next().and_then(|word| word.parse::<u64>().ok());
    let took = words.next().and_then(|word| word.parse().ok()).map(Duration::from_secs_f64);
    Ok(match (output.status.success(), size == Some(whole), took) {
        (true, true, Some(took)) => Ok(took),
        (status, ..) => Err(format!("curl: {status}, {said} of {whole} bytes")),
    })
}

/// nginx as whoever wants no cache would set it up.
fn configuration(folder: &Folder, origin: Origin) -> String {
    let path = folder.path().display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("{kind}_temp_path {path}/{kind};\n"))
        .collect();
    let scheme = if origin == Origin::Http { "http" } else { "https" };
    format!(
        "user root root; daemon off; master_process off; pid {path}/nginx.pid; error_log {path}/error.log;\n\
         events {{ worker_connections 512; }}\n\
         http {{ {temporary} access_log off;\n\
         server {{ listen 127.0.0.1:8481; location / {{\n\
         proxy_pass {scheme}://10.99.0.1; proxy_http_version 1.1; proxy_set_header Connection \"\";\n\
         proxy_ssl_verify off; proxy_cache off; proxy_max_temp_file_size 0; }} }} }}\n"
    )
}
