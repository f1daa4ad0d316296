//! nginx with its RTMP module at the server's end, as Debian has it: it receives a stream and records it.
//!
//! In: a folder. Out: what was recorded, packet by packet, with the moment in which it was in the file.
//!
//! 1. nginx writes each packet to the file as it comes; the file is looked at each [`TURN`].
//! 2. Each connection that publishes has a file of its own: more than one file is more than one connection.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::compare::Seen;
use super::flv::Reader;
use crate::fleet::Member;
use crate::server::find;
use crate::{Lab, LabError};

/// How often the recording is looked at.
const TURN: Duration = Duration::from_millis(5);

/// Where Debian, Fedora and Arch have the module.
const MODULES: [&str; 2] =
    ["/usr/lib/nginx/modules/ngx_rtmp_module.so", "/usr/lib64/nginx/modules/ngx_rtmp_module.so"];

/// Programs that a broadcast needs; the error names the package of what is missing.
pub(crate) fn check_installed() -> Result<(), LabError> {
    for (program, package) in [("ffmpeg", "ffmpeg"), ("nginx", "nginx-light"), ("socat", "socat")] {
        find(program).ok_or(LabError::Missing { program: program.into(), package })?;
    }
    module().map(drop)
}

fn module() -> Result<&'static str, LabError> {
    let missing =
        || LabError::Missing { program: "ngx_rtmp_module.so of nginx".into(), package: "libnginx-mod-rtmp" };
    MODULES.into_iter().find(|path| Path::new(path).is_file()).ok_or_else(missing)
}

/// A running nginx and who watches its recordings.
#[derive(Debug)]
pub(crate) struct Ingest {
    _nginx: Member,
    watcher: Option<JoinHandle<Result<Recorded, String>>>,
    end: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
}

/// What was recorded.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    pub(crate) packets: Vec<Seen>,
    /// Connections that published.
    pub(crate) connections: usize,
}

impl Ingest {
    /// Starts it on port 1935 of the server's end.
    pub(crate) fn start(lab: &Lab, folder: &Path) -> Result<Self, LabError> {
        let step = || LabError::at("a place for the recording");
        let records = folder.join("recorded");
        fs::create_dir_all(&records).map_err(step())?;
        let program = find("nginx").ok_or(LabError::Missing { program: "nginx".into(), package: "nginx-light" })?;
        fs::write(folder.join("rtmp.conf"), configuration(module()?, folder)).map_err(step())?;
        let mut command = Command::new(program);
        command.arg("-p").arg(folder).arg("-c").arg(folder.join("rtmp.conf"));
        let nginx = Member::start("nginx", folder, &mut command, |command| lab.spawn_at_server(command))?;
        listens(lab)?;
        let (end, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let watcher = Watcher { records, end: Arc::clone(&end), count: Arc::clone(&count), files: Vec::new() };
        Ok(Self { _nginx: nginx, watcher: Some(std::thread::spawn(|| watcher.watch())), end, count })
    }

    /// Packets that were recorded so far.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Everything that was recorded.
    pub(crate) fn end(mut self) -> Result<Recorded, String> {
        self.end.store(true, Ordering::Relaxed);
        let watcher = self.watcher.take().map(JoinHandle::join);
        watcher
            .unwrap_or_else(|| Ok(Err("nobody watched".into())))
            .unwrap_or_else(|_| Err("the watcher broke down".into()))
    }
}

impl Drop for Ingest {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
    }
}

fn configuration(module: &str, folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "load_module {module};\n\
         user root root;\n\
         daemon off;\n\
         master_process off;\n\
         pid {folder}/rtmp.pid;\n\
         error_log {folder}/rtmp-error.log;\n\
         events {{ worker_connections 64; }}\n\
         rtmp {{\n\
         \x20   access_log off;\n\
         \x20   server {{\n\
         \x20       listen 1935;\n\
         \x20       application live {{ live on; record all; record_unique on; record_path {folder}/recorded; }}\n\
         \x20   }}\n\
         }}\n"
    )
}

/// Waits until somebody listens on the port.
fn listens(lab: &Lab) -> Result<(), LabError> {
    let at = std::net::SocketAddr::from((crate::network::SERVER, 1935));
    let until = Instant::now() + PATIENCE;
    while lab.inside_server(|| std::net::TcpStream::connect(at)).is_err() {
        if Instant::now() > until {
            return Err(LabError::Server("nginx does not listen for RTMP".into()));
        }
        std::thread::sleep(TURN);
    }
    Ok(())
}

const PATIENCE: Duration = Duration::from_secs(10);

struct Watcher {
    records: PathBuf,
    end: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
    files: Vec<Watched>,
}

struct Watched {
    path: PathBuf,
    file: File,
    reader: Reader,
}

impl Watcher {
    fn watch(mut self) -> Result<Recorded, String> {
        let mut recorded = Recorded::default();
        let mut buffer = vec![0; 256 * 1024];
        loop {
            // Asked first: what is there at the end is still read.
            let last = self.end.load(Ordering::Relaxed);
            self.find().map_err(|error| format!("{}: {error}", self.records.display()))?;
            for watched in &mut self.files {
                while let Ok(length @ 1..) = watched.file.read(&mut buffer) {
                    let at = Instant::now();
                    watched.reader.push(buffer.get(..length).unwrap_or_default());
                    let packets = watched.reader.packets();
                    let packets = packets.map_err(|error| format!("{}: {error}", watched.path.display()))?;
                    recorded.packets.extend(packets.into_iter().map(|packet| Seen { at, packet }));
                }
            }
            self.count.store(recorded.packets.len(), Ordering::Relaxed);
            if last {
                recorded.connections = self.files.len();
                return Ok(recorded);
            }
            std::thread::sleep(TURN);
        }
    }

    /// Files that are new, in the order of their names, which end with the second of their making.
    fn find(&mut self) -> io::Result<()> {
        let mut new = Vec::new();
        for entry in fs::read_dir(&self.records)? {
            let path = entry?.path();
            if self.files.iter().all(|watched| watched.path != path) {
                new.push(path);
            }
        }
        new.sort();
        for path in new {
            self.files.push(Watched { file: File::open(&path)?, path, reader: Reader::default() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_names_the_module_and_records_everything() {
        let text = configuration("/m.so", Path::new("/place"));
        assert!(text.starts_with("load_module /m.so;\n"), "{text}");
        assert!(text.contains("record all; record_unique on; record_path /place/recorded;"), "{text}");
        assert_eq!(text.matches('{').count(), text.matches('}').count());
    }
}
