//! Priority of a live stream over uploads, over two emulated links.
//!
//! No measured time decides, only the bytes of both that have reached the server when the stream ends. Where the
//! machine permits no lab, the reason is printed and the test is skipped.

use std::process::Command;

use crate::common;

/// Counts the bytes at the stream's port and at the uploads' port from the first byte of the stream, and prints
/// both counts when it ends.
const SINK: &str = r#"
use strict; use IO::Socket::INET; use IO::Select; $| = 1;
my ($live, $bulk) = map { IO::Socket::INET->new(Listen => 64, LocalAddr => "10.99.0.1", LocalPort => $_, ReuseAddr => 1) or die } @ARGV;
my ($all, %of, %came) = (IO::Select->new($live, $bulk));
while (my @ready = $all->can_read) {
    for my $s (@ready) {
        if ($s == $live or $s == $bulk) { my $c = $s->accept; $of{$c} = $s == $live ? "live" : "bulk"; $all->add($c); next }
        my $n = sysread $s, my $piece, 65536;
        if ($n) { $came{$of{$s}} += $n if $of{$s} eq "live" or $came{live}; next }
        $all->remove($s);
        if ($of{$s} eq "live") { printf "%d %d\n", $came{live}, $came{bulk} // 0; exit }
    }
}
"#;

/// A stream of 6 Mbit/s through the edge, one frame every 40 ms.
const STREAM: &str = r#"
use strict; use IO::Socket::INET; use Time::HiRes qw(time sleep); $| = 1;
my $s = IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => 1088) or die "the edge: $!";
print $s "CONNECT 10.99.0.1:$ARGV[0] HTTP/1.1\r\n\r\n";
my $head = ""; while ($head !~ /\r\n\r\n$/) { sysread $s, my $c, 1 or die "no answer"; $head .= $c }
die $head unless $head =~ m{^HTTP/1.1 200 };
my ($began, $picture) = (time, "x" x 30_000);
for my $n (0 .. 25 * 10 - 1) {
    my $early = $began + $n / 25 - time; sleep $early if $early > 0;
    my $left = $picture; while (length $left) { my $w = syswrite $s, $left or die $!; substr($left, 0, $w) = "" }
}
shutdown $s, 1; sysread $s, my $end, 1;
"#;

const CLIENT: &str = r#"
cd "$PLACE"
"$MARLINE" edge --relay 10.99.0.1:4443 --certificate e1.pem --run-dir "$PLACE/run" 2>edge.log & edge=$!
until grep -q "listens on" edge.log; do kill -0 $edge || { cat edge.log >&2; exit 99; }; sleep 0.1; done
for n in 1 2; do curl -s -o /dev/null -p -x http://127.0.0.1:1088 -T /dev/zero http://10.99.0.1:9000/ & done
sleep 2
perl stream.pl $PORT; code=$?
# The process number of the edge outside of the lab, which is the one in /proc.
grep -hE 'VmHWM|RssAnon' /proc/$(pgrep -of "run-dir $PLACE/run")/status >memory
kill $edge; wait $edge; cat edge.log >&2
exit $code
"#;

/// Bytes received of the stream, and of two uploads meanwhile, over two links of 5 Mbit/s; `None` if no lab is
/// possible.
fn run_with_uploads(port: u16) -> Option<(u64, u64)> {
    let dir = tempfile::tempdir().unwrap();
    for args in [
        "fleet ca init --ca-dir ca --name test",
        "fleet ca issue relay r1 --ca-dir ca --address 10.99.0.1 --out .",
        "fleet ca issue edge e1 --ca-dir ca --out .",
    ] {
        let made = Command::new(common::marline()).current_dir(&dir).args(args.split(' ')).output().unwrap();
        assert!(made.status.success(), "{args}: {}", String::from_utf8_lossy(&made.stderr));
    }
    std::fs::create_dir(dir.path().join("run")).unwrap();
    for (name, text) in [("sink.pl", SINK), ("stream.pl", STREAM)] {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    let server = format!(
        "cd \"$PLACE\"; perl sink.pl {port} 9000 >came & exec \"$MARLINE\" relay --listen 10.99.0.1:4443 --certificate r1.pem \
         --revoked ca/revoked.pem --allow-net 10.99.0.1 --allow-port {port} --allow-port 9000 2>relay.log"
    );
    let mut command = common::lab();
    command.args(["exec", "--link", "a,rate=20Mbit/s,up=5Mbit/s,rtt=40ms"]);
    command.args([
        "--link",
        "b,rate=20Mbit/s,up=5Mbit/s,rtt=60ms",
        "--server",
        &server,
        "--",
        "bash",
        "-c",
        CLIENT,
    ]);
    command.env("PLACE", dir.path()).env("PORT", port.to_string());
    let output = command.env("HOME", dir.path()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    match output.status.code() {
        Some(77) => eprintln!("skipped: {stderr}"),
        Some(0) if stderr.contains("not managed") => eprintln!("skipped: {stderr}"),
        Some(0) => {
            // The sink prints this when the end of the stream has passed the relay, which is before the client
            // notices it.
            let result = std::fs::read_to_string(dir.path().join("came")).unwrap();
            let (live, bulk) = result.trim().split_once(' ').unwrap();
            let memory = std::fs::read_to_string(dir.path().join("memory")).unwrap();
            println!("the edge's memory: {}", memory.split_whitespace().collect::<Vec<_>>().join(" "));
            // Only anonymous memory counts: pages of the executable are far more in this build than in an optimized
            // one.
            let rss_anon_kb =
                memory.lines().find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB"));
            assert!(rss_anon_kb.unwrap().parse::<u64>().unwrap() < 8_000, "{memory}");
            return Some((live.parse().unwrap(), bulk.parse().unwrap()));
        }
        code => {
            let relay = std::fs::read_to_string(dir.path().join("relay.log")).unwrap_or_default();
            panic!("{code:?}: {stderr}\n{relay}");
        }
    }
    None
}

#[test]
fn a_live_stream_has_priority_over_uploads_and_an_unclassified_stream_has_not() {
    let Some((live, bulk)) = run_with_uploads(1935) else { return };
    let Some((unnamed, other_bulk)) = run_with_uploads(1936) else { return };
    println!("live {live} B beside {bulk} B; not named {unnamed} B beside {other_bulk} B");
    assert_eq!((live, unnamed), (7_500_000, 7_500_000), "all has come");
    // The stream has 6 of 10 Mbit/s; without priority it has a third, as one of three flows.
    assert!(bulk < live, "{bulk} B of uploads beside {live} B");
    assert!(other_bulk > unnamed, "{other_bulk} B of uploads beside {unnamed} B");
}
