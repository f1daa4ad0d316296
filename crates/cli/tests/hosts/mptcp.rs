//! MPTCP for unmodified programs (`marline run`) and `marline get --mptcp`.
//!
//! Servers listen on the loopback interface, with or without MPTCP. The protocol of the accepted socket shows what the client used:
//! the kernel gives the server a plain TCP socket if the client did not request MPTCP. A test is skipped with a message where MPTCP,
//! a C compiler or Go is missing.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::net::ipproto::MPTCP;
use rustix::net::sockopt::socket_protocol;
use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
use rustix::process::{Pid, Signal, kill_process};

fn marline(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_marline"));
    command.args(args).env("HOME", "/nonexistent").env_remove("MARLINE_LOG").stdin(Stdio::null());
    command
}

/// The command `marline run -- ARGS…`.
fn run(args: &[&str]) -> Command {
    let mut all = vec!["run", "--"];
    all.extend(args);
    marline(&all)
}

fn stderr_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether `marline run` works on this machine; otherwise prints why not.
fn can_run() -> bool {
    static WHY_NOT: OnceLock<Option<String>> = OnceLock::new();
    let why_not = WHY_NOT.get_or_init(|| {
        let output = run(&["true"]).output().unwrap();
        (!output.status.success()).then(|| stderr_of(&output))
    });
    if let Some(why_not) = why_not {
        eprintln!("skipped: {why_not}");
    }
    why_not.is_none()
}

const BODY: &[u8] = b"a body that is not long\n";

/// A server for a fixed number of consecutive connections; `used_mptcp` returns for each whether it used MPTCP.
struct Server {
    url: String,
    port: String,
    used_mptcp: JoinHandle<Vec<bool>>,
}

/// Starts a server. None, with a printed reason, if this kernel lacks MPTCP.
fn server(mptcp: bool, connections: usize) -> Option<Server> {
    let Ok(fd) = socket(AddressFamily::INET, SocketType::STREAM, mptcp.then_some(MPTCP)) else {
        eprintln!("skipped: this kernel has no MPTCP");
        return None;
    };
    bind(&fd, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    listen(&fd, 8).unwrap();
    let listener = TcpListener::from(fd);
    let port = listener.local_addr().unwrap().port();
    let spoken = thread::spawn(move || {
        let serve = |_| {
            let (mut client, _) = listener.accept().unwrap();
            let spoken = socket_protocol(&client).unwrap() == Some(MPTCP);
            let mut lines = BufReader::new(client.try_clone().unwrap()).lines();
            // Read up to the empty line after the request head, or to the end.
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", BODY.len());
            let _ = client.write_all(head.as_bytes()).and_then(|()| client.write_all(BODY));
            spoken
        };
        (0..connections).map(serve).collect()
    });
    Some(Server { url: format!("http://127.0.0.1:{port}/file"), port: port.to_string(), used_mptcp: spoken })
}

/// Builds the C program that prints the protocols of its sockets. None, with a printed reason, if that fails.
fn protocols(folder: &Path, flags: &[&str]) -> Option<PathBuf> {
    let (source, program) = (folder.join("protocols.c"), folder.join("protocols"));
    fs::write(&source, PROTOCOLS).unwrap();
    let built = Command::new("cc").args(flags).arg("-o").arg(&program).arg(&source).output();
    match built {
        Ok(output) if output.status.success() => Some(program),
        Ok(output) => {
            eprintln!("skipped: cc {flags:?}: {}", stderr_of(&output));
            None
        }
        Err(error) => {
            eprintln!("skipped: cc: {error}");
            None
        }
    }
}

/// Opens sockets of several families, types and flags, and prints protocol, `O_NONBLOCK` and `FD_CLOEXEC` of each. Then connects to a
/// port, or prints the congestion control.
const PROTOCOLS: &str = r#"
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
static void print_socket(const char *name, int family, int type, int protocol) {
    int fd = socket(family, type, protocol), got = -1;
    socklen_t length = sizeof got;
    if (fd < 0) { perror(name); return; }
    getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &got, &length);
    printf("%s=%d,%d,%d\n", name, got, !!(fcntl(fd, F_GETFL) & O_NONBLOCK), fcntl(fd, F_GETFD) & FD_CLOEXEC);
    close(fd);
}
int main(int count, char **words) {
    print_socket("inet", AF_INET, SOCK_STREAM, 0);
    print_socket("tcp", AF_INET, SOCK_STREAM | SOCK_NONBLOCK, IPPROTO_TCP);
    print_socket("cloexec", AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    print_socket("udp", AF_INET, SOCK_DGRAM, 0);
    if (count == 1) {
        char name[16] = "";
        socklen_t length = sizeof name;
        getsockopt(socket(AF_INET, SOCK_STREAM, 0), IPPROTO_TCP, TCP_CONGESTION, name, &length);
        printf("%s\n", name);
    } else {
        struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(atoi(words[1])) };
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        if (connect(fd, (struct sockaddr *)&to, sizeof to)) { perror("connect"); return 1; }
    }
    return 0;
}
"#;

#[test]
fn curl_uses_mptcp_if_the_server_supports_it_and_tcp_otherwise() {
    if !can_run() {
        return;
    }
    for mptcp in [true, false] {
        let Some(server) = server(mptcp, 1) else { return };
        let output = run(&["curl", "-sS", &server.url]).output().unwrap();
        assert_eq!((stderr_of(&output).as_str(), output.stdout.as_slice()), ("", BODY));
        assert_eq!(server.used_mptcp.join().unwrap(), vec![mptcp]);
    }
}

#[test]
fn a_static_program_gets_mptcp_sockets_with_the_requested_flags() {
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = server(true, 1).filter(|_| can_run()) else { return };
    let Some(program) = protocols(folder.path(), &["-static"]) else { return };
    let output = run(&[program.to_str().unwrap(), &server.port]).output().unwrap();
    assert!(output.status.success(), "{}", stderr_of(&output));
    assert_eq!(stdout_of(&output), "inet=262,0,0\ntcp=262,1,0\ncloexec=262,0,1\nudp=17,0,0\n");
    assert_eq!(server.used_mptcp.join().unwrap(), vec![true]);
}

#[test]
fn a_go_program_uses_mptcp() {
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = server(true, 1).filter(|_| can_run()) else { return };
    let (source, program) = (folder.path().join("get.go"), folder.path().join("get"));
    let text = "package main\nimport (\"io\"; \"net\"; \"os\")\nfunc main() {\n\
        c, err := net.Dial(\"tcp\", os.Args[1])\nif err != nil { panic(err) }\n\
        io.WriteString(c, \"GET / HTTP/1.0\\r\\n\\r\\n\")\nio.Copy(os.Stdout, c)\n}\n";
    fs::write(&source, text).unwrap();
    let mut go = Command::new("go");
    go.arg("build").arg("-o").arg(&program).arg(&source).current_dir(folder.path());
    let built = go.env("CGO_ENABLED", "0").env("GO111MODULE", "off").output();
    match built {
        Ok(output) if output.status.success() => {}
        Ok(output) => return eprintln!("skipped: go build: {}", stderr_of(&output)),
        Err(error) => return eprintln!("skipped: go: {error}"),
    }
    let output = run(&[program.to_str().unwrap(), &format!("127.0.0.1:{}", server.port)]).output().unwrap();
    assert!(output.stdout.ends_with(BODY), "{}", stderr_of(&output));
    assert_eq!(server.used_mptcp.join().unwrap(), vec![true]);
}

#[test]
fn exit_code_signal_and_process_are_those_of_the_command() {
    if !can_run() {
        return;
    }
    assert_eq!(run(&["sh", "-c", "exit 42"]).status().unwrap().code(), Some(42));
    assert_eq!(run(&["sh", "-c", "kill -TERM $$"]).status().unwrap().signal(), Some(Signal::TERM.as_raw()));
    // The started process becomes the command itself, and has no other children.
    let child = run(&["sh", "-c", "echo $$; cat /proc/$$/task/$$/children; exec cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let id = child.id();
    let output = child.wait_with_output().unwrap();
    let lines: Vec<String> = stdout_of(&output).lines().map(|line| line.trim().to_owned()).collect();
    assert_eq!(lines[0], id.to_string());
    // The only child is the `cat` that reads the file.
    assert_eq!(lines[1].split(' ').count(), 1, "{lines:?}");
}

#[test]
fn exit_codes_of_failed_commands_are_those_of_a_shell_and_usage_errors_start_nothing() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("ran");
    let touch = ["touch", trace.to_str().unwrap()];
    let table: &[(&[&str], i32, &str)] = &[
        (&["run", "--", "no-such-command-anywhere"], 127, "no-such-command-anywhere: command not found"),
        (&["run", "--", "/etc/passwd"], 126, "/etc/passwd: Permission denied"),
        (&["run", "--", "/etc"], 126, "/etc: "),
        (&["run"], 64, "<COMMAND>"),
        (&["run", "--", ""], 64, "missing command to run"),
        (&["run", "--no-such-option", touch[0], touch[1]], 64, "--no-such-option"),
        (&["run", "--congestion", "", "--", touch[0], touch[1]], 64, "is not a congestion control name"),
        (
            &["run", "--congestion", "a-name-that-is-too-long", "--", touch[0], touch[1]],
            64,
            "is not a congestion control name",
        ),
        (&["run", "--congestion", "nosuch", "--", touch[0], touch[1]], 1, "congestion control nosuch: "),
    ];
    for (args, code, line) in table {
        let output = marline(args).output().unwrap();
        let stderr = stderr_of(&output);
        assert_eq!(output.status.code(), Some(*code), "{args:?}: {stderr}");
        assert!(stderr.contains(line) && stderr.lines().count() == 1, "{args:?}: {stderr}");
    }
    assert!(!trace.exists(), "the command ran despite a wrong option");
}

#[test]
fn a_nested_run_just_runs_the_command() {
    if !can_run() {
        return;
    }
    let inner = env!("CARGO_BIN_EXE_marline");
    let output = run(&[inner, "run", "--", "echo", "inside"]).output().unwrap();
    assert_eq!((stdout_of(&output).as_str(), stderr_of(&output).as_str()), ("inside\n", ""));
    let output = run(&[inner, "run", "--congestion", "cubic", "--", "echo", "inside"]).output().unwrap();
    assert_eq!((output.status.code(), stdout_of(&output).as_str()), (Some(1), ""));
    assert!(stderr_of(&output).contains("an outer `marline run` already controls"), "{}", stderr_of(&output));
}

/// Process IDs and parents of the `marline-run` helper processes that were started with `MARLINE_TEST=mark`.
fn helper_processes(mark: &str) -> Vec<(i32, i32)> {
    let wanted = format!("MARLINE_TEST={mark}\0");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let read = |name| fs::read(entry.path().join(name)).unwrap_or_default();
        let (environment, stat) = (read("environ"), String::from_utf8_lossy(&read("stat")).into_owned());
        let is_marline = environment.windows(wanted.len()).any(|window| window == wanted.as_bytes());
        if is_marline && stat.contains("(marline-run)") {
            let parent = stat.rsplit(") ").next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
            found.push((pid, parent));
        }
    }
    found
}

fn wait_for(description: &str, mut ready: impl FnMut() -> bool) {
    let began = Instant::now();
    while !ready() {
        assert!(began.elapsed() < Duration::from_secs(20), "timeout while waiting for {description}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_killed_helper_process_is_replaced_and_both_end_with_the_command() {
    if !can_run() {
        return;
    }
    let Some(server) = server(true, 1) else { return };
    let mark = format!("killed-{}", std::process::id());
    let script = format!("echo ready; read line; exec curl -sS {}", server.url);
    let mut command = run(&["sh", "-c", &script]);
    let mut child =
        command.env("MARLINE_TEST", &mark).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    let working_helper = |helpers: &[(i32, i32)]| {
        helpers.iter().find(|(_, parent)| helpers.iter().any(|(pid, _)| pid == parent)).map(|(pid, _)| *pid)
    };
    wait_for("the helper process", || working_helper(&helper_processes(&mark)).is_some());
    let first = working_helper(&helper_processes(&mark)).unwrap();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::KILL] {
        kill_process(Pid::from_raw(first).unwrap(), signal).unwrap();
    }
    wait_for("another helper process", || working_helper(&helper_processes(&mark)).is_some_and(|pid| pid != first));
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let mut body = Vec::new();
    lines.read_to_end(&mut body).unwrap();
    assert_eq!(body, BODY);
    assert!(child.wait().unwrap().success());
    assert_eq!(server.used_mptcp.join().unwrap(), vec![true]);
    wait_for("the end of the helper processes", || helper_processes(&mark).is_empty());
}

#[test]
fn background_processes_of_a_command_use_mptcp_and_do_not_delay_its_end() {
    if !can_run() {
        return;
    }
    let Some(server) = server(true, 1) else { return };
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    // The background process has closed the standard streams and waits for a line.
    let script = "(read line <$1; exec curl -sS $2 -o $3) </dev/null >/dev/null 2>&1 & echo left";
    let body = folder.path().join("body");
    let args = ["sh", "-c", script, "sh", fifo.to_str().unwrap(), &server.url, body.to_str().unwrap()];
    let output = run(&args).output().unwrap();
    assert_eq!(stdout_of(&output), "left\n", "the pipe reaches its end while the background process lives");
    fs::write(&fifo, "go\n").unwrap();
    assert_eq!(server.used_mptcp.join().unwrap(), vec![true]);
    wait_for("the body", || fs::read(&body).is_ok_and(|bytes| bytes == BODY));
}

#[test]
fn in_another_network_namespace_a_command_gets_sockets_of_that_namespace() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = protocols(folder.path(), &[]).filter(|_| can_run()) else { return };
    let output = run(&["unshare", "-n", program.to_str().unwrap()]).output().unwrap();
    if !output.status.success() {
        return eprintln!("skipped: {}", stderr_of(&output));
    }
    assert!(
        stdout_of(&output).starts_with("inet=6,0,0\ntcp=6,1,0\ncloexec=6,0,1\nudp=17,0,0\n"),
        "{}",
        stdout_of(&output)
    );
}

#[test]
fn inherited_sockets_are_unchanged_and_the_process_id_is_kept() {
    // Socket activation (sd_listen_fds(3)): descriptor 3 is a listening socket, LISTEN_PID the process that it is for.
    let parent = r#"use Socket; $^F = 9; socket(my $l, PF_INET, SOCK_STREAM, 6) or die $!; bind($l, sockaddr_in(0, INADDR_LOOPBACK)) or die $!; listen($l, 1);
        require POSIX; POSIX::dup2(fileno($l), 3); ($ENV{LISTEN_FDS}, $ENV{LISTEN_PID}) = (1, $$); exec @ARGV or die $!"#;
    let child = r#"use Socket; sub protocol { unpack("i", getsockopt($_[0], 1, 38)) } open(my $l, "+<&=3") or die $!; socket(my $s, PF_INET, SOCK_STREAM, 0) or die $!;
        print $ENV{LISTEN_PID} == $$ ? "mine" : "another's", " ", protocol($l), " ", protocol($s), "\n""#;
    let mut started = Command::new("perl");
    started.args(["-e", parent, env!("CARGO_BIN_EXE_marline"), "run", "--", "perl", "-e", child]);
    if Command::new("perl").arg("-v").output().is_err() || !can_run() {
        return eprintln!("skipped: needs the program perl");
    }
    let output = started.output().unwrap();
    assert_eq!(stdout_of(&output), "mine 6 262\n", "{}", stderr_of(&output));
}

#[test]
fn a_proc_of_another_pid_namespace_does_not_mislead_the_helper() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = protocols(folder.path(), &[]).filter(|_| can_run()) else { return };
    // Processes get small IDs, which denote other processes in the `/proc` that is still mounted.
    let mut inside = Command::new("unshare");
    inside.args(["--pid", "--fork", env!("CARGO_BIN_EXE_marline"), "run", "--"]).arg(program);
    let output = inside.output().unwrap();
    if !output.status.success() {
        return eprintln!("skipped (before Linux 6.11, or no privilege): {}", stderr_of(&output));
    }
    assert!(stdout_of(&output).starts_with("inet=262,0,0\ntcp=262,1,0\n"), "{}", stdout_of(&output));
}

#[test]
fn each_socket_has_the_requested_congestion_control() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = protocols(folder.path(), &[]).filter(|_| can_run()) else { return };
    // `reno` is in every kernel and usually not the default.
    let output = marline(&["run", "--congestion", "reno", "--", program.to_str().unwrap()]).output().unwrap();
    assert!(stdout_of(&output).starts_with("inet=262,0,0\n"), "{}", stderr_of(&output));
    assert!(stdout_of(&output).ends_with("\nreno\n"), "{}", stdout_of(&output));
}

#[test]
fn no_new_privs_is_set_only_for_unprivileged_users() {
    if !can_run() {
        return;
    }
    let command = ["grep", "NoNewPrivs", "/proc/self/status"];
    if !rustix::process::geteuid().is_root() {
        return assert_eq!(stdout_of(&run(&command).output().unwrap()), "NoNewPrivs:\t1\n");
    }
    assert_eq!(stdout_of(&run(&command).output().unwrap()), "NoNewPrivs:\t0\n");
    // The program may be in a directory that only root can enter, so a copy is used.
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let copy = folder.path().join("marline");
    // A separate process copies it: otherwise a child of another test could hold the file open for writing, and running it would fail (ETXTBSY).
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_marline")).arg(&copy).status().unwrap();
    assert!(copied.success());
    let open = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    fs::set_permissions(folder.path(), open).unwrap();
    let mut unprivileged = Command::new("setpriv");
    unprivileged.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]);
    let output = unprivileged.arg(&copy).args(["run", "--"]).args(command).output().unwrap();
    assert_eq!(stdout_of(&output), "NoNewPrivs:\t1\n", "{}", stderr_of(&output));
}

#[test]
fn get_reports_whether_mptcp_was_used() {
    for (args, mptcp, expected) in [
        (&["--mptcp"][..], true, "\"mptcp\":\"spoken\""),
        (&["--mptcp"], false, "\"mptcp\":\"fell-back\""),
        (&[], true, "\"mptcp\":null"),
    ] {
        let Some(server) = server(mptcp, 1) else { return };
        let output = marline(&["get", "--json", "--quiet", "-o", "-", &server.url]).args(args).output().unwrap();
        assert_eq!(output.stdout, BODY, "{}", stderr_of(&output));
        assert!(stderr_of(&output).contains(expected), "{}", stderr_of(&output));
        assert_eq!(server.used_mptcp.join().unwrap(), vec![mptcp && !args.is_empty()]);
    }
}
