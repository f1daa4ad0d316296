//! Runs the first block of `docs/fleet.md` in a shell, line by line, from an empty directory to a recorded stream.
//!
//! Each line must succeed, the edge must print the text below the block, and edge, service and recording must agree that the relay
//! carried the stream.
//!
//! 1. The commands are those of the document; only its pauses are replaced: the test continues when a program logs where it
//!    listens, and when the edge has been assigned a relay.
//! 2. Where permitted it runs in a new network namespace, so that the document's ports are free; elsewhere over the loopback
//!    interface of the machine, with a message.
//! 3. All started processes end with the shell, which `timeout` ends.

use std::io::Write as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

const HEADING: &str = "## From nothing to a stream";
const LONG: Duration = Duration::from_secs(60);
/// Options of `unshare` for new namespaces: as root, or with a user namespace.
const USER_NAMESPACE_OPTIONS: [&[&str]; 2] = [&[], &["--user", "--map-root-user"]];
const NAMESPACE_OPTIONS: [&str; 6] = ["--net", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"];

/// The first code block of this language below this heading.
fn block<'a>(document: &'a str, heading: &str, kind: &str) -> &'a str {
    let below = document.split_once(heading).unwrap().1;
    below.split_once(&format!("```{kind}\n")).unwrap().1.split_once("\n```").unwrap().0
}

/// The commands of a block, with continued lines joined.
fn commands(block: &str) -> Vec<String> {
    let lines = block.replace("\\\n", " ");
    lines.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(Into::into).collect()
}

/// A shell; its output and that of everything it starts is in the file `said`.
struct Shell<'a> {
    child: Child,
    stdin: ChildStdin,
    dir: &'a Path,
    lines: usize,
}

impl<'a> Shell<'a> {
    fn start(dir: &'a Path) -> Self {
        let can_unshare = |options: &[&str]| {
            let tried = Command::new("unshare").args(options).args(NAMESPACE_OPTIONS).args(["ip", "link"]).output();
            tried.is_ok_and(|output| output.status.success())
        };
        let mut args = vec!["180", "bash"];
        match USER_NAMESPACE_OPTIONS.into_iter().find(|options| can_unshare(options)) {
            Some(options) => {
                args = [&["180", "unshare"][..], options, &NAMESPACE_OPTIONS[..], &["bash"][..]].concat()
            }
            None => eprintln!("over the machine's loopback interface: a network namespace cannot be created here"),
        }
        let output_file = std::fs::File::create(dir.join("said")).unwrap();
        let mut command = Command::new("timeout");
        command.args(&args).current_dir(dir.join("work")).stdin(Stdio::piped());
        command.stdout(output_file.try_clone().unwrap()).stderr(output_file);
        command
            .env("HOME", dir)
            .env("STATE_DIRECTORY", dir)
            .env("XDG_RUNTIME_DIR", dir)
            .env_remove("XDG_CONFIG_HOME");
        command
            .env("PATH", format!("{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", dir.display()));
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let mut shell = Self { child, stdin, dir, lines: 0 };
        if args.contains(&"unshare") {
            shell.paste("ip link set lo up && mount -t tmpfs none /run");
        }
        shell
    }

    fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.dir.join("said")).unwrap()).into_owned()
    }

    fn until(&self, description: &str, condition: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            let output = self.output();
            if condition(&output) {
                return output;
            }
            assert!(begun.elapsed() < LONG, "never {description}:\n{output}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs a line, which must succeed, and returns its output.
    fn paste(&mut self, line: &str) -> String {
        let (before, listening) = (self.output().len(), self.output().matches("listens on").count());
        self.lines += 1;
        let end = format!("== {} 0 ==\n", self.lines);
        // The marker is on a line of its own, whatever was printed before.
        writeln!(self.stdin, "{line}\necho; echo == {} $? ==", self.lines).unwrap();
        let output =
            self.until(&format!("the end of `{line}`"), |output| output.contains(&format!("== {} ", self.lines)));
        assert!(output.contains(&end), "`{line}` fails:\n{output}");
        if line.starts_with("marline") && line.ends_with('&') {
            self.until(&format!("that `{line}` listens"), |output| {
                output.matches("listens on").count() > listening
            });
        }
        output[before..].to_owned()
    }
}

impl Drop for Shell<'_> {
    fn drop(&mut self) {
        let _ = writeln!(self.stdin, "kill $(jobs -rp); exit");
        let _ = self.child.wait();
    }
}

#[test]
fn the_quick_start_of_the_documentation_carries_a_stream() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/fleet.md");
    let document = std::fs::read_to_string(document).unwrap();
    let lines = commands(block(&document, HEADING, "sh"));
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("work")).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_marline"), dir.path().join("marline")).unwrap();
    let mut shell = Shell::start(dir.path());
    let (mut edge, mut fleet) = (String::new(), String::new());
    for line in &lines {
        if line.starts_with("marline edge status") {
            // Wait until the recording has begun.
            shell.paste("until [ -s received.flv ]; do sleep 0.1; done");
        }
        if line.starts_with("ls ") {
            shell.paste("until [ $(jobs -r | grep -c ffmpeg) = 0 ]; do sleep 0.1; done");
        }
        if line.starts_with("kill ") {
            break;
        }
        let output = if line.starts_with("sleep ") { String::new() } else { shell.paste(line) };
        match line.split(" --").next().unwrap() {
            // This server prints nothing, so wait until it responds.
            command_line if command_line.starts_with("python3") => {
                drop(shell.paste("until curl -so /dev/null http://127.0.0.1:8000/; do sleep 0.1; done"));
            }
            command_line if command_line.starts_with("socat") => {
                drop(shell.paste("until grep -q ':0790 .* 0A ' /proc/net/tcp && grep -q ':078F .* 0A ' /proc/net/tcp; do sleep 0.1; done"));
            }
            "marline edge" => {
                drop(shell.paste(
                    "until marline edge status --json | grep -q '\"reservation_bps\": 8000000'; do sleep 0.2; done",
                ));
            }
            "curl -s" => assert!(output.contains("it has come\n"), "{output}"),
            "marline edge status" => edge = output,
            "marline fleet status" => fleet = output,
            _ => {}
        }
    }
    for line in block(&document, HEADING, "text").lines() {
        assert!(edge.contains(&format!("{line}\n")), "never `{line}`: {edge}");
    }
    let row = |name: &str| {
        fleet.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{fleet}")).to_owned()
    };
    assert!(row("fra-1 ").contains("  ok  ") && row("cam-7 ").contains("  fra-1  8.0Mbit/s  "), "{fleet}");
    // All frames: 12 s at the 25 frames per second of ffmpeg's test source.
    let count = ["-v", "fatal", "-count_packets", "-show_entries", "stream=nb_read_packets", "-of", "csv=p=0"];
    let probe_output =
        Command::new("ffprobe").args(count).arg(dir.path().join("work/received.flv")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&probe_output.stdout).trim(), "300");
}
