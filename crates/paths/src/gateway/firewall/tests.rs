//! Rules of other programs, put into the kernel of a network of their own and listed by nft, so that what is read is what it prints.

use std::process::Command;

use marline_net::links::Subnet;
use marline_net::testing::in_a_network;

use super::*;
use crate::forward::nft;

fn in_a_network_with_nft(work: impl FnOnce() + Send) {
    match Command::new("nft").arg("--version").output() {
        Ok(_) => in_a_network(work),
        Err(_) => eprintln!("skipped: needs the program nft"),
    }
}

/// The rules of this host, as they are read.
fn listed() -> Ruleset {
    let json = nft::list(&["--json", "--terse"]).unwrap();
    Ruleset::read(&json, || nft::list(&["--handle", "--terse"]).ok()).unwrap()
}

/// The same once these tables are all that there are.
fn ruleset(tables: &str) -> Ruleset {
    nft::run(&format!("flush ruleset\n{tables}")).unwrap_or_else(|error| panic!("{error}: {tables}"));
    listed()
}

const LAN: Side = Side::Lan(Some(Subnet {
    address: std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 168, 77, 1)),
    prefix_len: 24,
}));

fn packet(hook: &'static str) -> Packet<'static> {
    let (to, protocol, mark) = if hook == "forward" { (Some("wan1"), "udp", 0) } else { (None, "tcp", 0x6d62) };
    let is_ipv4 = true;
    Packet {
        hook,
        is_ipv4,
        from: "lan0",
        to,
        protocol,
        mark,
        state: "new",
        source: LAN,
        destination: Side::Internet,
    }
}

fn forward(tables: &str) -> Vec<(String, bool)> {
    let dropped = dropped_by(&ruleset(tables), &packet("forward"));
    dropped.into_iter().map(|by| (format!("{} {}", by.table, by.chain), by.policy)).collect()
}

fn input(tables: &str) -> bool {
    !dropped_by(&ruleset(tables), &packet("input")).is_empty()
}

/// A table with one base chain, and others.
fn list(head: &str, rules: &[&str], others: &str) -> String {
    format!("table ip filter {{\n\tchain BASE {{\n\t\t{head}\n\t\t{}\n\t}}\n{others}\n}}\n", rules.join("\n\t\t"))
}

const DROPS: &str = "type filter hook forward priority filter; policy drop;";
const ACCEPTS: &str = "type filter hook forward priority filter; policy accept;";
const DOCKER: [&str; 4] = [
    "counter packets 0 bytes 0 jump DOCKER-USER",
    "oifname \"docker0\" ct state related,established counter packets 0 bytes 0 accept",
    "iifname \"docker0\" oifname != \"docker0\" counter packets 0 bytes 0 accept",
    "iifname \"docker0\" oifname \"docker0\" counter packets 0 bytes 0 accept",
];

#[test]
fn dockers_policy_drops_a_lans_packets_until_a_rule_accepts_them() {
    in_a_network_with_nft(|| {
        let user = |rule: &str| {
            let user = format!("\tchain DOCKER-USER {{\n\t\t{rule}\n\t\tcounter packets 0 bytes 0 return\n\t}}");
            forward(&list(DROPS, &DOCKER, &user))
        };
        assert_eq!(user(""), [("ip filter BASE".to_owned(), true)]);
        for rule in [
            "iifname \"lan0\" counter packets 0 bytes 0 accept",
            "iifname \"lan*\" accept",
            "iifname { \"eth7\", \"lan0\" } oifname \"wan1\" ct state new counter packets 5 bytes 7 accept",
            "iifname . oifname { \"lan0\" . \"wan1\", \"a\" . \"b\" } accept",
            "ip saddr 192.168.0.0/16 counter packets 0 bytes 0 accept",
            "ip saddr { 10.0.0.0/8, 192.168.77.0-192.168.78.255 } accept",
            "ip daddr 0.0.0.0/0 accept",
            "ip daddr != 10.0.0.0/8 accept",
            "iifname != \"docker0\" accept",
            "iifname vmap { \"docker0\" : drop, \"lan0\" : accept }",
            "ct state vmap { established : accept, related : accept, new : accept }",
            "ct state != invalid accept",
            "ct direction original accept",
            "meta l4proto { tcp, udp } accept",
            "meta l4proto { tcp, udp } log prefix \"drop\" accept",
            "meta mark & 0xff == 0 accept",
            "meta mark != 7 accept",
            "log prefix \"all { of it; drop\" counter meta mark set 7 accept comment \"drop } return\"",
        ] {
            assert_eq!(user(rule), [], "{rule}");
        }
        for rule in [
            "iifname \"lan1\" accept",
            "iifname \"lan0\" ct state related,established accept",
            "iifname . oifname { \"lan0\" . \"wan7\" } accept",
            "ip saddr 10.0.0.0/8 accept",
            "ip saddr 192.168.77.9 accept",
            "udp dport 53 counter packets 0 bytes 0 accept",
            "tcp dport 22 accept",
            "iifname \"lan0\" oifname \"docker0\" accept",
            "ct state vmap { established : accept, invalid : drop }",
            "ct status dnat accept",
            "meta mark & 0xff == 1 accept",
            // What only logs, counts or marks accepts nothing, whatever its words.
            "log prefix \"accept; } iifname lan0 accept\"",
            "counter packets 0 bytes 0 comment \"iifname lan0 accept\"",
            "limit rate 3/minute log prefix \"accept\" level info",
            "meta mark set 0x1 counter packets 0 bytes 0",
        ] {
            assert_eq!(user(rule), [("ip filter BASE".to_owned(), true)], "{rule}");
        }
    });
}

#[test]
fn rules_drop_as_policies_do_and_what_is_not_known_is_no_alarm() {
    in_a_network_with_nft(|| {
        assert_eq!(
            forward(&list(ACCEPTS, &["iifname \"docker0\" accept", "drop"], "")),
            [("ip filter BASE".into(), false)]
        );
        for rule in ["reject with icmp type admin-prohibited", "log prefix \"[BLOCK] { \" drop", "counter drop"] {
            assert_eq!(forward(&list(ACCEPTS, &[rule], "")).len(), 1, "{rule}");
        }
        let others = "\tchain x {\n\t\tiifname \"lan0\" drop\n\t}";
        assert_eq!(forward(&list(ACCEPTS, &["goto x", "accept"], others)).len(), 1);
        assert_eq!(forward(&list(ACCEPTS, &["ct state invalid drop", "tcp dport 25 reject"], "")), []);
        assert_eq!(forward(&list(ACCEPTS, &["limit rate over 10/second drop"], "")), []);
        let sets = "\tset known { type ipv4_addr; elements = { 192.168.77.2 }; }\n\
                    \tmap verdicts { type ifname : verdict; elements = { \"lan0\" : accept }; }";
        for rule in
            ["ip saddr @known accept", "meta cpu 7 accept", "iifname vmap @verdicts", "limit rate 5/second accept"]
        {
            assert_eq!(forward(&list(DROPS, &[rule], sets)), [], "{rule}");
        }
        assert_eq!(forward(&list("type nat hook postrouting priority 0; policy drop;", &[], "")), []);
        let ours = list(DROPS, &[], "").replace("ip filter", "inet marline-lan");
        assert_eq!(forward(&ours), []);
        // The kernel refuses chains that lead to each other; a list that was read meanwhile may have them.
        let chain = |name: &str, to: &str| {
            format!(
                r#"{{"chain":{{"family":"ip","table":"t","name":"{name}"}}}},
                {{"rule":{{"family":"ip","table":"t","chain":"{name}","handle":1,"expr":[{{"jump":{{"target":"{to}"}}}}]}}}}"#
            )
        };
        let base =
            r#"{"chain":{"family":"ip","table":"t","name":"a","type":"filter","hook":"forward","policy":"drop"}}"#;
        let ring = format!(r#"{{"nftables":[{},{},{base}]}}"#, chain("a", "b"), chain("b", "a"));
        assert_eq!(dropped_by(&Ruleset::read(&ring, || None).unwrap(), &packet("forward")), []);
        for end in 0..ring.len() {
            assert!(Ruleset::read(&ring[..end], || None).is_err());
        }
    });
}

#[test]
fn only_tables_through_which_routed_packets_pass_count() {
    in_a_network_with_nft(|| {
        for family in ["ip", "inet"] {
            assert_eq!(forward(&list(DROPS, &[], "").replace("ip filter", &format!("{family} filter"))).len(), 1);
        }
        let of = |family: &str| list(DROPS, &[], "").replace("ip filter", &format!("{family} filter"));
        assert_eq!(forward(&of("ip6")), []);
        let bridge = of("bridge");
        assert_eq!(forward(&bridge), []);
        let guard = "type filter hook input priority filter; policy drop;";
        let input_of = |family: &str| of(family).replace(DROPS, guard);
        assert!(!input(&input_of("bridge")) && !input(&input_of("arp")) && input(&input_of("ip")));
        // One that its owner has switched off.
        assert_eq!(forward(&list(DROPS, &[], "\tflags dormant")), []);
        let v6 = Packet { is_ipv4: false, source: Side::Lan(None), ..packet("forward") };
        assert_eq!(dropped_by(&ruleset(&of("ip6")), &v6).len(), 1);
        let only_v4 = list(ACCEPTS, &["ip saddr 0.0.0.0/0 drop"], "").replace("ip filter", "inet filter");
        assert_eq!(dropped_by(&ruleset(&only_v4), &v6), []);
        assert_eq!(forward(&only_v4).len(), 1);
    });
}

#[test]
fn a_firewall_of_what_comes_in_has_to_accept_the_mark() {
    in_a_network_with_nft(|| {
        let drops = "type filter hook input priority filter; policy drop;";
        let ufw = ["iifname \"lo\" accept", "ct state related,established accept", "jump ufw-not-local"];
        let others = "\tchain ufw-not-local {\n\t\tfib daddr type local counter packets 0 bytes 0 return\n\t\tfib daddr type multicast return\n\t\tlimit rate 3/minute burst 10 packets jump logs\n\t\tdrop\n\t}\n\tchain logs {\n\t\tlog prefix \"[UFW BLOCK] \"\n\t}";
        assert!(input(&list(drops, &ufw, others)));
        let lets = ["meta mark 0x00006d62 counter packets 0 bytes 0 accept"];
        assert!(!input(&list(drops, &[&lets[..], &ufw[..]].concat(), others)));
        assert!(!input(&list(drops, &["iifname \"lan0\" accept"], "")));
        assert!(input(&list(drops, &["tcp dport { 22, 80 } accept", "iifname \"lan0\" udp dport 67 accept"], "")));
    });
}

#[test]
fn firewallds_chain_is_read_to_its_end() {
    in_a_network_with_nft(|| {
        let rules = [
            "ct state { established, related } accept",
            "ct status dnat accept",
            "iifname \"lo\" accept",
            "ct state invalid drop",
            "ip6 daddr { ::/96, ::ffff:0.0.0.0/96 } reject with icmpv6 type addr-unreachable",
            "jump policies",
            "reject with icmpx type admin-prohibited",
        ];
        let others = "\tchain policies {\n\t\tiifname \"lan0\" oifname \"wan1\" jump allowed\n\t}\n\tchain allowed {\n\t\tRULE\n\t}";
        let of = |rule| list(ACCEPTS, &rules, &others.replace("RULE", rule)).replace("ip filter", "inet firewalld");
        assert_eq!(forward(&of("")), [("inet firewalld BASE".to_owned(), false)]);
        assert_eq!(forward(&of("accept")), []);
    });
}

#[test]
fn rules_of_iptables_are_read_where_nftables_has_no_expression_for_them() {
    in_a_network_with_nft(|| {
        let is_nft = Command::new("iptables-nft").arg("--version").output();
        if is_nft.is_err() {
            return eprintln!("skipped: needs the program iptables-nft");
        }
        let judged = |rules: &[&str]| {
            nft::run("flush ruleset\n").unwrap();
            for rule in rules {
                // The words of a rule; a `~` is a blank inside a word.
                let words = rule.split_whitespace().map(|word| word.replace('~', " "));
                let output = Command::new("iptables-nft").args(words).output().unwrap();
                assert!(output.status.success(), "{rule}: {}", String::from_utf8_lossy(&output.stderr));
            }
            dropped_by(&listed(), &packet("forward")).len()
        };
        const POLICY: &str = "-P FORWARD DROP";
        for rule in [
            "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            "-A FORWARD -m state --state ESTABLISHED -m comment --comment ct~state~new~accept -j ACCEPT",
            "-A FORWARD -m addrtype --dst-type LOCAL -j ACCEPT",
            "-A FORWARD -p udp -m multiport --dports 53,123 -j ACCEPT",
            "-A FORWARD -p icmp --icmp-type echo-request -j ACCEPT",
            "-A FORWARD -m limit --limit 3/min -j LOG --log-prefix accept~{~;",
            "-A FORWARD -j MARK --set-mark 7",
        ] {
            assert_eq!(judged(&[POLICY, rule]), 1, "{rule}");
        }
        for rule in [
            "-A FORWARD -m conntrack --ctstate NEW,ESTABLISHED -j ACCEPT",
            "-A FORWARD -m conntrack ! --ctstate INVALID -j ACCEPT",
            "-A FORWARD -i lan+ -m comment --comment drop~}~return -j ACCEPT",
            "-A FORWARD -m addrtype --dst-type UNICAST -j ACCEPT",
            // Not understood, and so no alarm.
            "-A FORWARD -m conntrack --ctstate DNAT,NEW -j ACCEPT",
            "-A FORWARD -m mac --mac-source 00:11:22:33:44:55 -m conntrack --ctstate NEW -j ACCEPT",
        ] {
            assert_eq!(judged(&[POLICY, rule]), 0, "{rule}");
        }
        assert_eq!(judged(&["-A FORWARD -j REJECT --reject-with icmp-port-unreachable"]), 1);
        assert_eq!(judged(&["-A FORWARD -m conntrack --ctstate INVALID -j DROP"]), 0);
    });
}

#[test]
fn an_older_nft_does_not_name_what_it_has_no_expression_for() {
    let json = r#"{"nftables":[
        {"table":{"family":"ip","name":"filter","handle":1}},
        {"chain":{"family":"ip","table":"filter","name":"FORWARD","handle":1,"type":"filter","hook":"forward","prio":0,"policy":"drop"}},
        {"rule":{"family":"ip","table":"filter","chain":"FORWARD","handle":5,"expr":[
            {"xt":null},{"counter":{"packets":0,"bytes":0}},{"accept":null}]}}]}"#;
    let text = |state: &str| {
        Some(format!(
            "table ip filter {{ # handle 1\n\tchain FORWARD {{ # handle 1\n\t\ttype filter hook forward priority filter; policy drop;\n\
             \t\tct state {state} counter packets 0 bytes 0 accept # handle 5\n\t}}\n}}\n"
        ))
    };
    let dropped =
        |text: Option<String>| dropped_by(&Ruleset::read(json, || text).unwrap(), &packet("forward")).len();
    assert_eq!(dropped(text("related,established")), 1);
    assert_eq!(dropped(text("related,new")), 0);
    assert_eq!(dropped(None), 0, "it may accept");
}
