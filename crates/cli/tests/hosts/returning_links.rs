//! Links that fail during a transfer and recover carry it again, however they failed: through `marline edge` and a relay, and for MPTCP
//! programs under `marline paths`.
//!
//! The tests compare bytes, never times; the times are printed (`--nocapture`).

use crate::routers::run_in_network;

/// Shell functions for the scripts below: `away` makes a link fail, `back` repairs it three seconds later, `transfer` checks that it
/// carries again.
const SHELL_FUNCTIONS: &str = r#"
link wan1 1 10.0.1.2 10.0.1.1; link wan2 2 10.0.2.2 10.0.2.1
slow() { tc qdisc replace dev wan$1 root tbf rate 8mbit burst 20k limit 100k; }
away() { # HOW N
    case $1 in
        down) ip link set wan$2 down;;
        removed) ip link delete wan$2;;
        carrier) ip -n g$2 link set dn0 down;;
        lease) ip address flush dev wan$2;;
        silent) silence $2;;
    esac
}
back() {
    case $1 in
        down) ip link set wan$2 up; ip route add default via 10.0.$2.1 dev wan$2 metric ${2}00;;
        removed) plug wan$2 $2 10.0.$2.2 10.0.$2.1; slow $2;;
        carrier) ip -n g$2 link set dn0 up;;
        lease) ip address add 10.0.$2.77/24 dev wan$2; ip route add default via 10.0.$2.1 dev wan$2 metric ${2}00;;
        silent) recover $2;;
    esac
}
# Both directions of an interface in sum; a transfer has only one large direction.
bytes() { awk -v name=$1: '$1 == name { print $2 + $10 }' /proc/net/dev; }
carries() { # LINK BYTES: waits until the link has carried so many further bytes
    local from=$(bytes $1) began=${EPOCHREALTIME/./}
    for turn in $(seq 300); do
        if [ $(( $(bytes $1) - from )) -gt $2 ]; then
            echo "$1: $2 bytes after $(( (${EPOCHREALTIME/./} - began) / 1000 )) ms" >&2; return
        fi
        sleep 0.05; kill -0 $transfer || { echo "the transfer has ended" >&2; return 1; }
    done
    echo "$1 does not carry: $(( $(bytes $1) - from )) bytes of $2" >&2
    "$MARLINE" paths status --run-dir run >&2
    "$MARLINE" paths explain $("$MARLINE" paths status --run-dir run | awk '/45.0.0.10/ { print $1; exit }') --run-dir run >&2
    return 1
}
transfer() { # HOST BYTES PROXY FAILURE…: the first failure is of the first link, and so on
    LIMIT=100 perl ask.pl $1 $2 $3 >came & transfer=$!
    local bytes=$2; shift 3
    carries wan1 1000000; carries wan2 1000000
    local n=1
    for how in "$@"; do
        away $how $n; sleep 3; back $how $n
        echo "wan$n returns, was $how" >&2
        carries wan$n 300000; carries wan$n 1500000; n=$((n + 1))
    done
    wait $transfer; [ "$(cat came)" = ${bytes#-} ] && echo whole
}
slow 1; slow 2
"#;

/// A transfer during which the first link fails in the first way and recovers, then the second link in the second way. `through` is `edge`
/// or `paths`, and `changes` has the two ways, as arguments of `away`.
fn links_return(through: &str, bytes: &str, changes: &str) {
    let (begin, host, proxy) = match through {
        "edge" => ("relay; edge", "45.2.0.20", "1088"),
        _ => ("paths", "45.0.0.10", "''"),
    };
    let Some(lines) =
        run_in_network(&format!("{SHELL_FUNCTIONS}\n{begin}\ntransfer {host} {bytes} {proxy} {changes}"))
    else {
        return;
    };
    assert_eq!(lines, ["whole"], "{through} {bytes} {changes}");
}

/// Bytes of a transfer, as an argument of `links_return`; a negative number uploads.
const DOWNLOAD: &str = "20000000";
const UPLOAD: &str = "-20000000";

#[test]
fn an_edge_downloads_again_over_recovered_links() {
    links_return("edge", DOWNLOAD, "removed carrier");
}

#[test]
fn an_edge_uploads_again_over_recovered_links() {
    links_return("edge", UPLOAD, "down lease");
}

#[test]
#[ignore = "five minutes; make soak runs it"]
fn transfers_use_recovered_links_again_after_each_kind_of_failure() {
    for through in ["edge", "paths"] {
        for bytes in [DOWNLOAD, UPLOAD] {
            for changes in ["down removed", "removed down", "carrier lease", "lease silent", "silent carrier"] {
                eprintln!("{through} {bytes} {changes}");
                links_return(through, bytes, changes);
            }
        }
    }
}
