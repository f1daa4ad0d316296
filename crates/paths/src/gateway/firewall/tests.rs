//! Tests with real rules: they are loaded into the kernel of a network namespace and listed by nft, so that the
//! parser reads what nft prints.

use std::process::Command;

use marline_net::links::Subnet;
use marline_net::testing::in_a_network;

use super::*;
use crate::transparent::nft;

fn in_netns_with_nft(test: impl FnOnce() + Send) {
    match Command::new("nft").arg("--version").output() {
        Ok(_) => in_a_network(test),
        Err(_) => eprintln!("skipped: needs the program nft"),
    }
}

/// Reads the rules of this network namespace.
fn read_ruleset() -> Ruleset {
    let json = nft::list_ruleset(&["--json", "--terse"]).unwrap();
    Ruleset::parse(&json, || nft::list_ruleset(&["--handle", "--terse"]).ok()).unwrap()
}

/// Replaces all tables by these and reads the rules.
fn load_ruleset(tables: &str) -> Ruleset {
    nft::run_commands(&format!("flush ruleset\n{tables}")).unwrap_or_else(|error| panic!("{error}: {tables}"));
    read_ruleset()
}

const LAN_SCOPE: AddressScope = AddressScope::Lan(Some(Subnet {
    address: std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 168, 77, 1)),
    prefix_len: 24,
}));

fn test_packet(hook: &'static str) -> Packet<'static> {
    let (oif, protocol, mark) = if hook == "forward" { (Some("wan1"), "udp", 0) } else { (None, "tcp", 0x6d62) };
    let is_ipv4 = true;
    Packet {
        hook,
        is_ipv4,
        iif: "lan0",
        oif,
        protocol,
        mark,
        ct_state: "new",
        source: LAN_SCOPE,
        destination: AddressScope::Internet,
    }
}

fn forward_drops(tables: &str) -> Vec<(String, bool)> {
    let dropped = dropping_chains(&load_ruleset(tables), &test_packet("forward"));
    dropped
        .into_iter()
        .map(|chain_drop| (format!("{} {}", chain_drop.table, chain_drop.chain), chain_drop.by_policy))
        .collect()
}

fn has_input_drop(tables: &str) -> bool {
    !dropping_chains(&load_ruleset(tables), &test_packet("input")).is_empty()
}

/// A table with one base chain and further chains.
fn table_text(chain_spec: &str, rules: &[&str], others: &str) -> String {
    format!(
        "table ip filter {{\n\tchain BASE {{\n\t\t{chain_spec}\n\t\t{}\n\t}}\n{others}\n}}\n",
        rules.join("\n\t\t")
    )
}

const DROP_POLICY: &str = "type filter hook forward priority filter; policy drop;";
const ACCEPT_POLICY: &str = "type filter hook forward priority filter; policy accept;";
const DOCKER_RULES: [&str; 4] = [
    "counter packets 0 bytes 0 jump DOCKER-USER",
    "oifname \"docker0\" ct state related,established counter packets 0 bytes 0 accept",
    "iifname \"docker0\" oifname != \"docker0\" counter packets 0 bytes 0 accept",
    "iifname \"docker0\" oifname \"docker0\" counter packets 0 bytes 0 accept",
];

#[test]
fn dockers_policy_drops_lan_packets_until_a_rule_accepts_them() {
    in_netns_with_nft(|| {
        let docker_user_drops = |rule: &str| {
            let docker_user_drops =
                format!("\tchain DOCKER-USER {{\n\t\t{rule}\n\t\tcounter packets 0 bytes 0 return\n\t}}");
            forward_drops(&table_text(DROP_POLICY, &DOCKER_RULES, &docker_user_drops))
        };
        assert_eq!(docker_user_drops(""), [("ip filter BASE".to_owned(), true)]);
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
            assert_eq!(docker_user_drops(rule), [], "{rule}");
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
            // Statements that only log, count or mark accept nothing, whatever words they contain.
            "log prefix \"accept; } iifname lan0 accept\"",
            "counter packets 0 bytes 0 comment \"iifname lan0 accept\"",
            "limit rate 3/minute log prefix \"accept\" level info",
            "meta mark set 0x1 counter packets 0 bytes 0",
        ] {
            assert_eq!(docker_user_drops(rule), [("ip filter BASE".to_owned(), true)], "{rule}");
        }
    });
}

#[test]
fn rules_drop_like_policies_and_unknown_matches_raise_no_alarm() {
    in_netns_with_nft(|| {
        assert_eq!(
            forward_drops(&table_text(ACCEPT_POLICY, &["iifname \"docker0\" accept", "drop"], "")),
            [("ip filter BASE".into(), false)]
        );
        for rule in ["reject with icmp type admin-prohibited", "log prefix \"[BLOCK] { \" drop", "counter drop"] {
            assert_eq!(forward_drops(&table_text(ACCEPT_POLICY, &[rule], "")).len(), 1, "{rule}");
        }
        let others = "\tchain x {\n\t\tiifname \"lan0\" drop\n\t}";
        assert_eq!(forward_drops(&table_text(ACCEPT_POLICY, &["goto x", "accept"], others)).len(), 1);
        assert_eq!(
            forward_drops(&table_text(ACCEPT_POLICY, &["ct state invalid drop", "tcp dport 25 reject"], "")),
            []
        );
        assert_eq!(forward_drops(&table_text(ACCEPT_POLICY, &["limit rate over 10/second drop"], "")), []);
        let sets = "\tset known { type ipv4_addr; elements = { 192.168.77.2 }; }\n\
                    \tmap verdicts { type ifname : verdict; elements = { \"lan0\" : accept }; }";
        for rule in
            ["ip saddr @known accept", "meta cpu 7 accept", "iifname vmap @verdicts", "limit rate 5/second accept"]
        {
            assert_eq!(forward_drops(&table_text(DROP_POLICY, &[rule], sets)), [], "{rule}");
        }
        assert_eq!(forward_drops(&table_text("type nat hook postrouting priority 0; policy drop;", &[], "")), []);
        let own_table = table_text(DROP_POLICY, &[], "").replace("ip filter", "inet marline-lan");
        assert_eq!(forward_drops(&own_table), []);
        // The kernel refuses cyclic jumps, but a list that is read during a change may contain them.
        let chain = |name: &str, target: &str| {
            format!(
                r#"{{"chain":{{"family":"ip","table":"t","name":"{name}"}}}},
                {{"rule":{{"family":"ip","table":"t","chain":"{name}","handle":1,"expr":[{{"jump":{{"target":"{target}"}}}}]}}}}"#
            )
        };
        let base =
            r#"{"chain":{"family":"ip","table":"t","name":"a","type":"filter","hook":"forward","policy":"drop"}}"#;
        let cycle = format!(r#"{{"nftables":[{},{},{base}]}}"#, chain("a", "b"), chain("b", "a"));
        assert_eq!(dropping_chains(&Ruleset::parse(&cycle, || None).unwrap(), &test_packet("forward")), []);
        for length in 0..cycle.len() {
            assert!(Ruleset::parse(&cycle[..length], || None).is_err());
        }
    });
}

#[test]
fn only_tables_on_the_forwarding_path_count() {
    in_netns_with_nft(|| {
        for family in ["ip", "inet"] {
            assert_eq!(
                forward_drops(&table_text(DROP_POLICY, &[], "").replace("ip filter", &format!("{family} filter")))
                    .len(),
                1
            );
        }
        let table_of =
            |family: &str| table_text(DROP_POLICY, &[], "").replace("ip filter", &format!("{family} filter"));
        assert_eq!(forward_drops(&table_of("ip6")), []);
        let bridge = table_of("bridge");
        assert_eq!(forward_drops(&bridge), []);
        let input_policy = "type filter hook input priority filter; policy drop;";
        let input_of = |family: &str| table_of(family).replace(DROP_POLICY, input_policy);
        assert!(
            !has_input_drop(&input_of("bridge"))
                && !has_input_drop(&input_of("arp"))
                && has_input_drop(&input_of("ip"))
        );
        // A dormant table.
        assert_eq!(forward_drops(&table_text(DROP_POLICY, &[], "\tflags dormant")), []);
        let v6 = Packet { is_ipv4: false, source: AddressScope::Lan(None), ..test_packet("forward") };
        assert_eq!(dropping_chains(&load_ruleset(&table_of("ip6")), &v6).len(), 1);
        let only_v4 =
            table_text(ACCEPT_POLICY, &["ip saddr 0.0.0.0/0 drop"], "").replace("ip filter", "inet filter");
        assert_eq!(dropping_chains(&load_ruleset(&only_v4), &v6), []);
        assert_eq!(forward_drops(&only_v4).len(), 1);
    });
}

#[test]
fn an_input_firewall_has_to_accept_the_mark() {
    in_netns_with_nft(|| {
        let input_policy = "type filter hook input priority filter; policy drop;";
        let ufw = ["iifname \"lo\" accept", "ct state related,established accept", "jump ufw-not-local"];
        let others = "\tchain ufw-not-local {\n\t\tfib daddr type local counter packets 0 bytes 0 return\n\t\tfib daddr type multicast return\n\t\tlimit rate 3/minute burst 10 packets jump logs\n\t\tdrop\n\t}\n\tchain logs {\n\t\tlog prefix \"[UFW BLOCK] \"\n\t}";
        assert!(has_input_drop(&table_text(input_policy, &ufw, others)));
        let accept_mark = ["meta mark 0x00006d62 counter packets 0 bytes 0 accept"];
        assert!(!has_input_drop(&table_text(input_policy, &[&accept_mark[..], &ufw[..]].concat(), others)));
        assert!(!has_input_drop(&table_text(input_policy, &["iifname \"lan0\" accept"], "")));
        assert!(has_input_drop(&table_text(
            input_policy,
            &["tcp dport { 22, 80 } accept", "iifname \"lan0\" udp dport 67 accept"],
            ""
        )));
    });
}

#[test]
fn firewalld_chains_are_evaluated_to_the_end() {
    in_netns_with_nft(|| {
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
        let table_of = |rule| {
            table_text(ACCEPT_POLICY, &rules, &others.replace("RULE", rule)).replace("ip filter", "inet firewalld")
        };
        assert_eq!(forward_drops(&table_of("")), [("inet firewalld BASE".to_owned(), false)]);
        assert_eq!(forward_drops(&table_of("accept")), []);
    });
}

#[test]
fn iptables_rules_without_nftables_expression_are_interpreted() {
    in_netns_with_nft(|| {
        let is_nft = Command::new("iptables-nft").arg("--version").output();
        if is_nft.is_err() {
            return eprintln!("skipped: needs the program iptables-nft");
        }
        let count_drops = |rules: &[&str]| {
            nft::run_commands("flush ruleset\n").unwrap();
            for rule in rules {
                // Words of a rule; `~` stands for a blank inside a word.
                let arguments = rule.split_whitespace().map(|arg| arg.replace('~', " "));
                let output = Command::new("iptables-nft").args(arguments).output().unwrap();
                assert!(output.status.success(), "{rule}: {}", String::from_utf8_lossy(&output.stderr));
            }
            dropping_chains(&read_ruleset(), &test_packet("forward")).len()
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
            assert_eq!(count_drops(&[POLICY, rule]), 1, "{rule}");
        }
        for rule in [
            "-A FORWARD -m conntrack --ctstate NEW,ESTABLISHED -j ACCEPT",
            "-A FORWARD -m conntrack ! --ctstate INVALID -j ACCEPT",
            "-A FORWARD -i lan+ -m comment --comment drop~}~return -j ACCEPT",
            "-A FORWARD -m addrtype --dst-type UNICAST -j ACCEPT",
            // Not interpreted, therefore no report.
            "-A FORWARD -m conntrack --ctstate DNAT,NEW -j ACCEPT",
            "-A FORWARD -m mac --mac-source 00:11:22:33:44:55 -m conntrack --ctstate NEW -j ACCEPT",
        ] {
            assert_eq!(count_drops(&[POLICY, rule]), 0, "{rule}");
        }
        assert_eq!(count_drops(&["-A FORWARD -j REJECT --reject-with icmp-port-unreachable"]), 1);
        assert_eq!(count_drops(&["-A FORWARD -m conntrack --ctstate INVALID -j DROP"]), 0);
    });
}

#[test]
fn older_nft_versions_do_not_name_xt_statements() {
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
    let dropped = |text: Option<String>| {
        dropping_chains(&Ruleset::parse(json, || text).unwrap(), &test_packet("forward")).len()
    };
    assert_eq!(dropped(text("related,established")), 1);
    assert_eq!(dropped(text("related,new")), 0);
    assert_eq!(dropped(None), 0, "it may accept");
}
