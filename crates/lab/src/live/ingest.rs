//! RTMP ingest: Debian's nginx with its RTMP module, in the server namespace. It receives a stream and records it;
//! a thread watches the recording and notes when each packet appears in the file.
//!
//! 1. nginx writes each packet to the file as it arrives; the file is polled every [`POLL_INTERVAL`].
//! 2. Each publishing connection gets a file of its own, so the number of files is the number of connections.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::flv::FlvReader;
use super::packet_diff::TimedPacket;
use crate::fleet::FleetProcess;
use crate::server::find_program;
use crate::{Lab, LabError};

/// Interval of polling the recording.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Paths of the module on Debian and Arch, and on Fedora.
const RTMP_MODULE_PATHS: [&str; 2] =
    ["/usr/lib/nginx/modules/ngx_rtmp_module.so", "/usr/lib64/nginx/modules/ngx_rtmp_module.so"];

/// Checks that the programs of a broadcast are installed; the error names the package of a missing one.
pub(crate) fn check_installed() -> Result<(), LabError> {
    for (program, package) in [("ffmpeg", "ffmpeg"), ("nginx", "nginx-light"), ("socat", "socat")] {
        find_program(program).ok_or(LabError::MissingProgram { program: program.into(), package })?;
    }
    rtmp_module().map(drop)
}

fn rtmp_module() -> Result<&'static str, LabError> {
    let missing =
        || LabError::MissingProgram { program: "ngx_rtmp_module.so of nginx".into(), package: "libnginx-mod-rtmp" };
    RTMP_MODULE_PATHS.into_iter().find(|path| Path::new(path).is_file()).ok_or_else(missing)
}

/// A running nginx and the thread that watches its recordings.
#[derive(Debug)]
pub(crate) struct RtmpIngest {
    _nginx: FleetProcess,
    watcher: Option<JoinHandle<Result<Recording, String>>>,
    is_stopping: Arc<AtomicBool>,
    packet_count: Arc<AtomicUsize>,
}

/// Recorded packets.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    pub(crate) packets: Vec<TimedPacket>,
    /// Number of publishing connections.
    pub(crate) connections: usize,
}

impl RtmpIngest {
    /// Starts nginx on port 1935 in the server namespace.
    pub(crate) fn start(lab: &Lab, folder: &Path) -> Result<Self, LabError> {
        let step = || LabError::at_step("directory of the recording");
        let records = folder.join("recorded");
        fs::create_dir_all(&records).map_err(step())?;
        let program = find_program("nginx")
            .ok_or(LabError::MissingProgram { program: "nginx".into(), package: "nginx-light" })?;
        fs::write(folder.join("rtmp.conf"), nginx_config(rtmp_module()?, folder)).map_err(step())?;
        let mut command = Command::new(program);
        command.arg("-p").arg(folder).arg("-c").arg(folder.join("rtmp.conf"));
        let nginx = FleetProcess::start("nginx", folder, &mut command, |command| lab.spawn_at_server(command))?;
        wait_for_listener(lab)?;
        let (end, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let watcher = RecordingWatcher {
            record_dir: records,
            is_stopping: Arc::clone(&end),
            packet_count: Arc::clone(&count),
            files: Vec::new(),
        };
        Ok(Self {
            _nginx: nginx,
            watcher: Some(std::thread::spawn(|| watcher.watch())),
            is_stopping: end,
            packet_count: count,
        })
    }

    /// Number of packets recorded so far.
    pub(crate) fn packet_count(&self) -> usize {
        self.packet_count.load(Ordering::Relaxed)
    }

    /// Stops watching and returns the recording.
    pub(crate) fn stop(mut self) -> Result<Recording, String> {
        self.is_stopping.store(true, Ordering::Relaxed);
        let watcher = self.watcher.take().map(JoinHandle::join);
        watcher
            .unwrap_or_else(|| Ok(Err("the recording was not watched".into())))
            .unwrap_or_else(|_| Err("the watcher's thread panicked".into()))
    }
}

impl Drop for RtmpIngest {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }
}

fn nginx_config(module: &str, folder: &Path) -> String {
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

/// Waits until nginx listens on the port.
fn wait_for_listener(lab: &Lab) -> Result<(), LabError> {
    let address = std::net::SocketAddr::from((crate::network::SERVER, 1935));
    let deadline = Instant::now() + LISTEN_TIMEOUT;
    while lab.run_at_server(|| std::net::TcpStream::connect(address)).is_err() {
        if Instant::now() > deadline {
            return Err(LabError::Server("nginx does not listen for RTMP".into()));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

const LISTEN_TIMEOUT: Duration = Duration::from_secs(10);

struct RecordingWatcher {
    record_dir: PathBuf,
    is_stopping: Arc<AtomicBool>,
    packet_count: Arc<AtomicUsize>,
    files: Vec<RecordingFile>,
}

struct RecordingFile {
    path: PathBuf,
    file: File,
    reader: FlvReader,
}

impl RecordingWatcher {
    fn watch(mut self) -> Result<Recording, String> {
        let mut recorded = Recording::default();
        let mut buffer = vec![0; 256 * 1024];
        loop {
            // Read the flag before the files, so that the last iteration still reads data written before the stop.
            let is_last = self.is_stopping.load(Ordering::Relaxed);
            self.find_new_files().map_err(|error| format!("{}: {error}", self.record_dir.display()))?;
            for watched in &mut self.files {
                while let Ok(length @ 1..) = watched.file.read(&mut buffer) {
                    let seen_at = Instant::now();
                    watched.reader.push(buffer.get(..length).unwrap_or_default());
                    let packets = watched.reader.packets();
                    let packets = packets.map_err(|error| format!("{}: {error}", watched.path.display()))?;
                    recorded.packets.extend(packets.into_iter().map(|packet| TimedPacket { seen_at, packet }));
                }
            }
            self.packet_count.store(recorded.packets.len(), Ordering::Relaxed);
            if is_last {
                recorded.connections = self.files.len();
                return Ok(recorded);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Opens files that are new, in the order of their names, which end with their creation time in seconds.
    fn find_new_files(&mut self) -> io::Result<()> {
        let mut new_files = Vec::new();
        for entry in fs::read_dir(&self.record_dir)? {
            let path = entry?.path();
            if self.files.iter().all(|watched| watched.path != path) {
                new_files.push(path);
            }
        }
        new_files.sort();
        for path in new_files {
            self.files.push(RecordingFile { file: File::open(&path)?, path, reader: FlvReader::default() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_names_the_module_and_records_everything() {
        let text = nginx_config("/m.so", Path::new("/place"));
        assert!(text.starts_with("load_module /m.so;\n"), "{text}");
        assert!(text.contains("record all; record_unique on; record_path /place/recorded;"), "{text}");
        assert_eq!(text.matches('{').count(), text.matches('}').count());
    }
}
