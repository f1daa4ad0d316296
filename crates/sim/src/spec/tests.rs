//! Text format of links: each form parses back to the same value, and errors name the field and what is expected.

use proptest::prelude::*;

use super::*;

fn parse_link(line: &str) -> LinkSpec {
    line.parse().unwrap()
}

fn parse_error(line: &str) -> String {
    line.parse::<LinkSpec>().unwrap_err().to_string()
}

#[test]
fn a_short_line_has_the_defaults() {
    let wifi = parse_link("wifi,rate=80Mbit/s,rtt=20ms");
    assert_eq!(wifi, LinkSpec::constant("wifi", Bitrate::from_mbps(80), Duration::from_millis(20)));
    assert_eq!(wifi.queue_limit(), QueueLimit::Time(Duration::from_millis(50)));
    assert_eq!(wifi.mtu, DataSize::from_bytes(1500));
    assert_eq!(wifi.uplink, Uplink::SameAsDownlink);
    assert_eq!(parse_link("lte,rate=1Mbit/s").queue_limit(), QueueLimit::Time(Duration::from_millis(100)));
    assert_eq!(parse_link("lte,rate=1Mbit/s,codel").queue_limit(), QueueLimit::Time(Duration::from_secs(1)));
}

#[test]
fn the_kind_follows_from_the_name_unless_it_is_given() {
    let kind = |line: &str| parse_link(line).kind;
    for (name, expected) in [
        ("wifi", LinkKind::Wifi),
        ("wlan0", LinkKind::Wifi),
        ("lte", LinkKind::Lte),
        ("wwan1", LinkKind::Lte),
        ("eth0", LinkKind::Ethernet),
        ("sat", LinkKind::Other),
    ] {
        assert_eq!(kind(&format!("{name},rate=1Mbit/s")), expected);
    }
    assert_eq!(kind("wlan0,kind=nr,rate=1Mbit/s"), LinkKind::Nr);
}

#[test]
fn each_form_round_trips_through_text() {
    for line in [
        "wifi,rate=80Mbit/s,rtt=20ms",
        "wifi,kind=ethernet,rate=80Mbit/s,up=20Mbit/s,rtt=20ms,jitter=3ms,loss=0.5%,queue=50ms,mtu=1280B",
        "lte,rate=1500kbit/s,rtt=9ms,jitter=2ms,queue=64KiB,reorder,codel",
        "lte,rate=40Mbit/s,steps=3s:2Mbit/s+8500ms:40Mbit/s",
        "lte,trace=a.down,uptrace=b.up,rtt=50ms",
        "lte,trace=a.down,up=10Mbit/s,loss=ge:1%/25%/50%",
        "wifi,rate=20Mbit/s,loss=1%,uploss=0%",
        "wifi,rate=100Mbit/s,queue=5ms,police=20Mbit/s:64KiB",
        "wifi,medium=11g-mixed,rtt=20ms",
        "wifi,medium=11b,rate=11Mbit/s,up=2Mbit/s",
        "x,rate=12345678bit/s,rtt=1ns",
    ] {
        assert_eq!(parse_link(line).to_string(), line);
    }
}

#[test]
fn errors_name_the_field_its_value_and_what_is_expected() {
    for (line, parts) in [
        ("", &["link: ``", "1 to 15 letters"][..]),
        ("wi fi,rate=1Mbit/s", &["link: `wi fi`"]),
        ("a-name-too-long-for-it,rate=1Mbit/s", &["a-name-too-long-for-it"]),
        ("wifi", &["link wifi: rate", "rate=20Mbit/s", "trace=", "medium="]),
        ("wifi,rate=80", &["link wifi: rate: `80`", "20Mbit/s"]),
        ("wifi,rate=80MB", &["rate: `80MB`"]),
        ("wifi,rate=0bit/s", &["rate: `0bit/s`", "above zero", "hold"]),
        ("wifi,rate=1Mbit/s,up=0Mbit/s", &["up: `0Mbit/s`"]),
        ("wifi,rate=1Mbit/s,rtt=20", &["rtt: `20`", "50ms"]),
        ("wifi,rate=1Mbit/s,rtt=20ms,jitter=11ms", &["jitter: `11ms`", "half the rtt"]),
        ("wifi,rate=1Mbit/s,reorder", &["reorder", "jitter="]),
        ("wifi,rate=1Mbit/s,loss=2", &["loss: `2`", "0.5%", "ge:"]),
        ("wifi,rate=1Mbit/s,loss=101%", &["loss: `101%`", "100%"]),
        ("wifi,rate=1Mbit/s,loss=ge:1%/2%", &["loss: `ge:1%/2%`"]),
        ("wifi,rate=1Mbit/s,queue=9", &["queue: `9`", "64KiB"]),
        ("wifi,rate=1Mbit/s,police=1Mbit/s", &["police: `1Mbit/s`", "20Mbit/s:64KiB"]),
        ("wifi,rate=1Mbit/s,police=1Mbit/s:0B", &["police: `1Mbit/s:0B`", "above zero"]),
        ("wifi,rate=1Mbit/s,mtu=500B", &["mtu: `500B`", "576B"]),
        ("wifi,rate=1Mbit/s,mtu=1500", &["mtu: `1500`", "1500B"]),
        ("wifi,rate=1Mbit/s,mtu=64KiB", &["mtu: `64KiB`"]),
        ("wifi,rate=1Mbit/s,kind=WiFi", &["kind: `WiFi`", "wifi, lte"]),
        ("wifi,rate=1Mbit/s,speed=3", &["link wifi: `speed=3`", "kind=, medium="]),
        ("wifi,rate=1Mbit/s,fast", &["link wifi: `fast`", "reorder or codel"]),
        ("wifi,rate=1Mbit/s,rate=2Mbit/s", &["rate: `2Mbit/s`", "once"]),
        ("wifi,rate=1Mbit/s,trace=a", &["rate: `1Mbit/s`", "no rate= beside a trace"]),
        ("wifi,trace=", &["trace: ``", "mahimahi"]),
        ("wifi,trace=a,medium=11g", &["trace: `a`", "medium"]),
        ("wifi,medium=11n", &["medium: `11n`", "11g-mixed"]),
        ("wifi,medium=11g,uptrace=a", &["uptrace: `a`"]),
        ("wifi,rate=1Mbit/s,up=1Mbit/s,uptrace=a", &["uptrace: `a`", "either"]),
        ("wifi,trace=a,steps=1s:1Mbit/s", &["steps: `1s:1Mbit/s`", "only beside a rate="]),
        ("wifi,rate=1Mbit/s,steps=2s:1Mbit/s+1s:2Mbit/s", &["steps:", "increasing"]),
        ("wifi,rate=1Mbit/s,steps=1s", &["steps: `1s`", "3s:2Mbit/s"]),
    ] {
        let message = parse_error(line);
        for part in parts {
            assert!(message.contains(part), "{line}: `{message}` does not contain `{part}`");
        }
    }
}

#[test]
fn a_table_and_a_line_give_the_same_link() {
    #[derive(serde::Serialize, serde::Deserialize)]
    struct File {
        links: Vec<LinkSpec>,
    }
    let text = "links = [\n\
        { name = \"wifi\", rate = \"80Mbit/s\", rtt = \"20ms\", loss = \"0.5%\" },\n\
        \"lte,trace=a.down,codel\",\n]\n";
    let file: File = toml::from_str(text).unwrap();
    assert_eq!(
        file.links,
        [parse_link("wifi,rate=80Mbit/s,rtt=20ms,loss=0.5%"), parse_link("lte,trace=a.down,codel")]
    );
    let again: File = toml::from_str(&toml::to_string(&file).unwrap()).unwrap();
    assert_eq!(again.links, file.links);
    for (wrong, part) in [
        ("links = [{ name = \"wifi\", rate = \"80\" }]", "rate: `80`"),
        ("links = [{ name = \"wifi\", speed = \"80\" }]", "unknown field `speed`"),
        ("links = [{ rate = \"80Mbit/s\" }]", "missing field `name`"),
        ("links = [80]", "a link, as a table or as a line"),
    ] {
        let message = toml::from_str::<File>(wrong).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn events_round_trip_through_text() {
    for written in [
        "3s:wifi=down",
        "8s:wifi=up",
        "1500ms:lte=hold",
        "3s:wifi=rate=2Mbit/s",
        "3s:wifi=up=500kbit/s",
        "0s:wifi=loss=1%",
        "3s:wifi=loss=ge:1%/25%/50%",
        "3s:wifi=rtt=80ms",
        "3s:wifi=jitter=2ms",
    ] {
        assert_eq!(written.parse::<LinkEvent>().unwrap().to_string(), written);
        let json = serde_json::to_string(&written.parse::<LinkEvent>().unwrap()).unwrap();
        assert_eq!(json, format!("\"{written}\""));
        assert_eq!(serde_json::from_str::<LinkEvent>(&json).unwrap().to_string(), written);
    }
    let event: LinkEvent = "3s:wifi=down".parse().unwrap();
    assert_eq!(
        (event.at, event.link.as_str(), event.change),
        (Duration::from_secs(3), "wifi", LinkEventKind::Down)
    );
}

#[test]
fn a_malformed_event_is_rejected() {
    for (written, part) in [
        ("wifi=down", "TIME:LINK=CHANGE"),
        ("3:wifi=down", "TIME:LINK=CHANGE"),
        ("3s:=down", "TIME:LINK=CHANGE"),
        ("3s:wifi", "TIME:LINK=CHANGE"),
        ("3s:wifi=sleep", "down, hold, up"),
        ("3s:wifi=rate", "down, hold, up"),
        ("3s:wifi=rate=2", "a rate such as"),
        ("3s:wifi=rtt=2", "a duration such as"),
        ("3s:wifi=loss=2", "0.5%"),
    ] {
        let message = written.parse::<LinkEvent>().unwrap_err().to_string();
        assert!(message.contains(part), "{written}: {message}");
    }
}

#[test]
fn traces_are_found_in_the_directories_compressed_or_not() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.down"), "1\n2\n").unwrap();
    let mut gz = flate2::write::GzEncoder::new(
        std::fs::File::create(dir.path().join("b.up.gz")).unwrap(),
        flate2::Compression::fast(),
    );
    std::io::Write::write_all(&mut gz, b"5\n").unwrap();
    gz.finish().unwrap();
    let mut spec = parse_link("lte,trace=a.down,uptrace=b.up");
    assert!(!spec.is_loaded());
    let message = spec.load(&[]).unwrap_err().to_string();
    assert!(message.contains("a.down"), "{message}");
    spec.load(&[PathBuf::from("/nonexistent"), dir.path().to_path_buf()]).unwrap();
    assert!(spec.is_loaded());
    assert_eq!(spec.to_string(), "lte,trace=a.down,uptrace=b.up");
}

proptest! {
    #[test]
    fn any_link_round_trips_through_text(
        name in "[a-z][a-z0-9_.-]{0,14}",
        rate in 1..u64::MAX,
        up in proptest::option::of(1..u64::MAX),
        half_rtt in 0..1_000_000_000_u64,
        jitter in 0..1_000_000_000_u64,
        flags in any::<(bool, bool)>(),
        losses in (0..=1_000_000_u32, 0..=1_000_000_u32, 0..=1_000_000_u32, any::<bool>()),
        queue in proptest::option::of((any::<u64>(), any::<bool>())),
        police in proptest::option::of((1..u64::MAX, 1..u64::MAX)),
        mtu in 576..=65_535_u64,
        steps in proptest::collection::btree_map(1..u64::MAX, any::<u64>(), 0..4),
    ) {
        let share = marline_core::units::Ratio::from_ppm;
        let jitter = Duration::from_nanos(jitter.min(half_rtt));
        let spec = LinkSpec {
            kind: if flags.0 { LinkKind::Satellite } else { kind_from_name(&name) },
            downlink: Downlink::Rate {
                initial: Bitrate::from_bits_per_sec(rate),
                steps: steps
                    .into_iter()
                    .map(|(at, rate)| (Duration::from_nanos(at), Bitrate::from_bits_per_sec(rate)))
                    .collect(),
            },
            uplink: up.map_or(Uplink::SameAsDownlink, |up| Uplink::Rate(Bitrate::from_bits_per_sec(up))),
            rtt: Duration::from_nanos(half_rtt * 2),
            reorder: flags.1 && !jitter.is_zero(),
            jitter,
            loss: if losses.3 {
                Loss::GilbertElliott { enter_bad: share(losses.0), leave_bad: share(losses.1), loss_in_bad: share(losses.2) }
            } else {
                Loss::Independent(share(losses.0))
            },
            uplink_loss: (losses.1 % 2 == 0).then(|| Loss::Independent(share(losses.2))),
            queue: queue.map(|(n, time)| match time {
                true => QueueLimit::Time(Duration::from_nanos(n)),
                false => QueueLimit::Size(DataSize::from_bytes(n)),
            }),
            codel: flags.0,
            policer: police.map(|(rate, burst)| PolicerSpec {
                rate: Bitrate::from_bits_per_sec(rate),
                burst: DataSize::from_bytes(burst),
            }),
            mtu: DataSize::from_bytes(mtu),
            name,
        };
        prop_assert_eq!(spec.to_string().parse::<LinkSpec>().unwrap(), spec);
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC{0,40}") {
        let _ = text.parse::<LinkSpec>();
        let _ = text.parse::<LinkEvent>();
        let _ = format!("w,{text}").parse::<LinkSpec>();
    }
}
