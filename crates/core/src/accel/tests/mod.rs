//! The accelerator as a whole, one flow at a time.

mod early_ack;
mod fetcher;
mod flow_table;
mod http_map;
mod world;

use alloc::vec;
use alloc::vec::Vec;

use super::*;
use crate::units::Bitrate;
use crate::wire::packet::{
    IcmpUnreachable, NewSegment, Packet, SackBlocks, Seq, SeqRange, TcpTimestamp, Timestamps,
};

const WIFI: LinkId = LinkId(0);
const CELL: LinkId = LinkId(1);
const OTHER_LINK: LinkId = LinkId(2);
const SEGMENT: u32 = 1448;

/// A download at 20 Mbit/s without loss; every second segment is acknowledged.
struct Download {
    machine: Accelerator,
    now: Instant,
    ack: u32,
    /// The server's timestamp in the newest segment, which was sent 25 ms ago.
    ts_val: u32,
    has_timestamps: bool,
    gateway_answers: bool,
}

fn key() -> Key {
    let pair = crate::wire::packet::AddrPair::V4([10, 0, 0, 2].into(), [10, 99, 0, 1].into());
    Key { addrs: pair, source_port: 4000, destination_port: 443 }
}

impl Download {
    fn new(mechanisms: &[Mechanism]) -> Self {
        let mut config = Config::new(WIFI, Some(CELL));
        config.mechanisms = Mechanisms::of(mechanisms);
        let machine = Accelerator::new(config);
        Self {
            machine,
            now: Instant::from_millis(1000),
            ack: 1000,
            ts_val: 0,
            has_timestamps: true,
            gateway_answers: true,
        }
    }

    fn packet(&self, blocks: &[(u32, u32)]) -> PacketBytes {
        let ranges: Vec<SeqRange> = blocks.iter().map(|(a, b)| SeqRange::new(Seq::new(*a), Seq::new(*b))).collect();
        let ack = Ack {
            seq: Seq::new(7),
            ack: Seq::new(self.ack),
            window: 1000,
            flags: Flags::ACK,
            timestamps: self.has_timestamps.then(|| Timestamps {
                ts_val: TcpTimestamp::new(self.millis()),
                ts_ecr: TcpTimestamp::new(self.ts_val),
            }),
            sack_blocks: SackBlocks::of(&ranges),
        };
        PacketBytes(ack.emit(&key(), IpParams::default()))
    }

    fn millis(&self) -> u32 {
        u32::try_from(self.now.since(Instant::ZERO).as_millis()).unwrap()
    }

    /// All outputs for an ACK that leaves now; gateways answer at once.
    fn send_ack(&mut self, blocks: &[(u32, u32)]) -> Vec<Output> {
        let packet = self.packet(blocks);
        self.machine.handle(self.now, Input::Outgoing(packet));
        self.drain()
    }

    fn drain(&mut self) -> Vec<Output> {
        let mut all = vec![];
        while let Some(output) = self.machine.poll() {
            all.push(output);
        }
        for output in all.clone() {
            if let Output::Probe { link, sequence } = output
                && (self.gateway_answers || link != WIFI)
            {
                self.machine.handle(self.now, Input::ProbeReply { link, sequence });
                all.extend(self.drain());
            }
        }
        all
    }

    /// Data arrives for so long, and every second segment is acknowledged.
    fn run(&mut self, millis: u64) -> Vec<Output> {
        let (mut all, end) = (vec![], self.now + Duration::from_millis(millis));
        while self.now < end {
            all.extend(self.wait(1));
            self.ts_val = self.millis() - 25;
            self.ack = self.ack.wrapping_add(2 * SEGMENT);
            all.extend(self.send_ack(&[]));
        }
        all
    }

    /// Nothing arrives for so long.
    fn wait(&mut self, millis: u64) -> Vec<Output> {
        let (mut all, end) = (vec![], self.now + Duration::from_millis(millis));
        while let Some((at, _)) = self.machine.deadline().filter(|(at, _)| *at <= end) {
            self.now = self.now.max(at);
            self.machine.tick(self.now);
            all.extend(self.drain());
        }
        self.now = end;
        all
    }
}

#[test]
fn a_second_secondary_link_is_unused_until_the_first_one_fails() {
    let mut download = Download::new(&[Mechanism::AckOffload]);
    let mut config = download.machine.config().clone();
    let slow = SecondaryLink { up: Some(Bitrate::from_bits_per_sec(50_000)), ..SecondaryLink::new(CELL) };
    config.secondary_links = vec![slow, SecondaryLink { link: OTHER_LINK, ..slow }];
    download.machine = Accelerator::new(config);
    download.run(9000);
    let both = acks(&download.run(1000));
    let over = |link: LinkId, all: &[(LinkId, Ack)]| all.iter().filter(|(by, _)| *by == link).count();
    assert!(over(CELL, &both) > 80 && over(OTHER_LINK, &both) == 0);
    download.machine.handle(download.now, Input::Carrier { link: CELL, is_up: false });
    download.drain();
    download.run(20);
    let one = acks(&download.run(1000));
    assert!(over(CELL, &one) == 0 && over(OTHER_LINK, &one) > 80);
}

#[test]
fn acks_are_not_offloaded_to_a_link_without_their_address_family() {
    for mechanism in [Mechanism::AckOffload, Mechanism::AckOffloadAsPublished] {
        let mut download = Download::new(&[mechanism]);
        let mut config = download.machine.config().clone();
        let other = SecondaryLink { families: AddressFamilies::V6, ..SecondaryLink::new(CELL) };
        config.secondary_links =
            vec![other, SecondaryLink { families: AddressFamilies::V4, ..SecondaryLink::new(OTHER_LINK) }];
        let alone = Config { secondary_links: vec![other], ..config.clone() };
        download.machine = Accelerator::new(config);
        let both = acks(&download.run(10_000));
        assert!(
            both.iter().any(|(by, _)| *by == OTHER_LINK) && both.iter().all(|(by, _)| *by != CELL),
            "{mechanism}"
        );
        download.machine = Accelerator::new(alone);
        assert!(acks(&download.run(10_000)).iter().all(|(by, _)| *by == WIFI), "{mechanism}");
    }
}

#[test]
fn acks_without_timestamps_stay_on_the_primary_link() {
    let mut download = Download::new(&[Mechanism::AckOffload]);
    download.has_timestamps = false;
    assert!(acks(&download.run(10_000)).iter().all(|(by, _)| *by == WIFI));
}

/// The pure ACKs that these outputs send, with the link of each.
fn acks(outputs: &[Output]) -> Vec<(LinkId, Ack)> {
    let packets = outputs.iter().filter_map(|output| match output {
        Output::Forward(packet) => Some((WIFI, packet)),
        Output::Send { link, packet } => Some((*link, packet)),
        _ => None,
    });
    packets.map(|(link, packet)| (link, Segment::parse(&packet.0).unwrap().pure_ack().unwrap())).collect()
}

#[test]
fn packets_that_are_not_tcp_leave_unchanged() {
    let mut download = Download::new(&Mechanism::ALL);
    for bytes in [vec![], vec![0x45], vec![0xff; 60], vec![0x45; 1500]] {
        download.machine.handle(download.now, Input::Outgoing(PacketBytes(bytes.clone())));
        assert_eq!(download.drain(), [Output::Forward(PacketBytes(bytes))]);
    }
    download.machine.handle(download.now, Input::Captured { packet: PacketBytes(vec![0x45; 40]), length: 40 });
    assert_eq!(download.drain(), []);
}

#[test]
fn acks_leave_unchanged_while_no_mechanism_is_enabled() {
    let mut download = Download::new(&[]);
    download.run(500);
    download.ack += 2 * SEGMENT;
    let packet = download.packet(&[]);
    let outputs = download.send_ack(&[]);
    assert_eq!(outputs, [Output::Forward(packet)]);
}

#[test]
fn a_fast_flow_has_a_byte_withheld_which_is_released_when_no_ack_follows() {
    let mut download = Download::new(&[Mechanism::WithheldAck]);
    let first = acks(&download.run(4));
    assert_eq!(first.last().unwrap().1.ack, Seq::new(download.ack), "the flow is too young");
    let later_acks = acks(&download.run(500));
    assert_eq!(later_acks.last().unwrap().1.ack, Seq::new(download.ack - 1));
    let late_acks = acks(&download.wait(59));
    assert_eq!(late_acks, []);
    let late_acks = acks(&download.wait(100));
    assert_eq!(
        late_acks.iter().map(|(link, ack)| (*link, ack.ack)).collect::<Vec<_>>(),
        [(WIFI, Seq::new(download.ack))]
    );
}

#[test]
fn no_byte_is_withheld_behind_a_hole_and_for_five_seconds_after_it() {
    let mut download = Download::new(&[Mechanism::WithheldAck]);
    let withholds = |download: &mut Download, millis: u64| {
        let last = acks(&download.run(millis)).last().unwrap().1;
        last.ack == Seq::new(download.ack - 1)
    };
    assert!(withholds(&mut download, 500));
    let (hole, end) = (download.ack + SEGMENT, download.ack + 30 * SEGMENT);
    let ack = acks(&download.send_ack(&[(hole, end)]))[0].1;
    assert_eq!(
        (ack.ack, ack.sack_blocks.blocks()[0].end),
        (Seq::new(download.ack), Seq::new(end)),
        "the ACK is exact"
    );
    download.ack = end;
    download.send_ack(&[]);
    assert!(!withholds(&mut download, 4900));
    assert!(withholds(&mut download, 200));
}

#[test]
fn an_ack_with_holes_is_exact_and_the_one_that_closes_them_echoes_an_older_timestamp() {
    let mut download = Download::new(&[Mechanism::WithheldAck, Mechanism::EifelUndo]);
    download.run(1000);
    download.machine.paths.values_mut().for_each(|trust| *trust = PathTest::trusted());
    let (before, ack) = (download.ts_val, download.ack);
    let hole = ack + SEGMENT;
    let outputs = download.send_ack(&[(hole, hole + SEGMENT)]);
    assert_eq!(acks(&outputs).last().unwrap().1.ack, Seq::new(ack));
    assert!(outputs.contains(&Output::Capture(CaptureLevel::Headers)), "{outputs:?}");
    download.wait(50);
    (download.ack, download.ts_val) = (hole + 20 * SEGMENT, download.millis() - 25);
    let closing = acks(&download.send_ack(&[])).last().unwrap().1;
    assert_eq!(
        (closing.ack, closing.timestamps.unwrap().ts_ecr),
        (Seq::new(download.ack), TcpTimestamp::new(before))
    );
    assert!(download.wait(20_000).contains(&Output::Capture(CaptureLevel::None)));
    let status = &download.machine.flows(download.now)[0];
    assert_eq!((status.holes, status.random_losses, status.undone_reductions), (1, 1, 1));
}

#[test]
fn restart_acks_are_sent_until_data_arrives() {
    let mut download = Download::new(&[Mechanism::WithheldAck]);
    download.run(1000);
    download.gateway_answers = false;
    let during = download.wait(1000);
    assert!(download.machine.links(download.now)[0].is_down);
    let restarts = acks(&during);
    assert!((15..=20).contains(&restarts.len()), "{}", restarts.len());
    assert!(restarts.iter().all(|(link, ack)| *link == WIFI && ack.ack == Seq::new(download.ack)));
    let echo = restarts.last().unwrap().1.timestamps.unwrap().ts_ecr;
    assert!(echo.since(TcpTimestamp::new(download.ts_val)) > 800, "the sender's clock has gone on: {echo:?}");
    download.gateway_answers = true;
    download.run(100);
    assert!(!download.machine.links(download.now)[0].is_down);
    assert_eq!(acks(&download.wait(50)), [], "no further restart ACK");
}

/// The ICMP messages of these outputs, with the link of each; none: they are for the local stack.
fn unreachables(outputs: &[Output]) -> Vec<(Option<LinkId>, IcmpUnreachable)> {
    let packets = outputs.iter().filter_map(|output| match output {
        Output::Send { link, packet } => Some((Some(*link), packet)),
        Output::Deliver(packet) => Some((None, packet)),
        _ => None,
    });
    let read = |packet: &PacketBytes| IcmpUnreachable::of(Packet::parse(&packet.0).unwrap()).ok();
    packets.filter_map(|(link, packet)| Some((link, read(packet)?))).collect()
}

#[test]
fn a_sender_gets_one_unreachable_message_for_each_timeout_it_may_have_had() {
    let mut download = Download::new(&[Mechanism::OutageRevert]);
    download.run(1000);
    let hole = download.ack + SEGMENT;
    download.send_ack(&[(hole, hole + SEGMENT)]);
    download.gateway_answers = false;
    assert_eq!(acks(&download.wait(3500)), [], "no restart ACK would be news during the outage");
    assert_eq!(download.machine.flows(download.now)[0].active, [Mechanism::OutageRevert]);
    download.gateway_answers = true;
    let after = download.wait(200);
    let message = IcmpUnreachable { four_tuple: key().reversed(), seq: Seq::new(download.ack) };
    let messages = unreachables(&after);
    assert_eq!(
        messages.len(),
        (3 + 1) + 2 + 2,
        "timeouts after 0.3, 0.9 and 2 s, and the retransmission in flight"
    );
    assert!(messages.iter().all(|one| *one == (Some(WIFI), message)), "about the missing segment, to its sender");
    let remaining_outputs: Vec<Output> =
        after.into_iter().filter(|output| unreachables(core::slice::from_ref(output)).is_empty()).collect();
    let acks_sent = acks(&remaining_outputs);
    assert_eq!(acks_sent.len(), 3);
    assert!(
        acks_sent.iter().all(|(_, ack)| ack.ack == Seq::new(download.ack) && ack.sack_blocks.is_empty()),
        "SACK blocks are not repeated"
    );
    download.run(10);
    assert_eq!(unreachables(&download.wait(1000)), []);
    assert_eq!(download.machine.flows(download.now)[0].active, []);
}

#[test]
fn no_unreachable_message_is_sent_before_a_timeout_or_to_an_idle_sender() {
    let unreachables = |millis: u64, prepare: fn(&mut Download)| {
        let mut download = Download::new(&[Mechanism::OutageRevert]);
        download.run(1000);
        prepare(&mut download);
        download.machine.handle(download.now, Input::Carrier { link: WIFI, is_up: false });
        download.gateway_answers = false;
        download.wait(millis);
        download.gateway_answers = true;
        download.machine.handle(download.now, Input::Carrier { link: WIFI, is_up: true });
        let mut after = download.drain();
        after.extend(download.wait(300));
        unreachables(&after).len()
    };
    let close = |download: &mut Download| {
        let packet = download.packet(&[]);
        let ack = Segment::parse(&packet.0).unwrap().pure_ack().unwrap();
        let fin = Ack { flags: Flags::ACK | Flags::FIN, ..ack };
        download.machine.handle(download.now, Input::Outgoing(PacketBytes(fin.emit(&key(), IpParams::default()))));
        download.drain();
        download.ack += 1;
        download.send_ack(&[]);
    };
    assert_eq!(unreachables(150, |_| ()), 0);
    assert!(unreachables(1000, |_| ()) > 0);
    assert_eq!(unreachables(1000, close), 0, "the receiver has closed");
    assert_eq!(unreachables(1000, |download| drop(download.wait(3000))), 0, "nothing has arrived for long");
}

#[test]
fn unreachable_messages_are_sent_after_each_outage() {
    let mut download = Download::new(&[Mechanism::OutageRevert]);
    download.run(1000);
    for during in [3000, 3000] {
        download.gateway_answers = false;
        assert_eq!(unreachables(&download.wait(during)), []);
        download.gateway_answers = true;
        assert!(unreachables(&download.wait(300)).len() >= 4);
    }
}

#[test]
fn the_local_stack_gets_unreachable_messages_for_an_upload_after_an_outage() {
    let mut upload = Download::new(&[Mechanism::OutageRevert]);
    for n in 0..500 {
        upload.wait(1);
        upload.ts_val = upload.millis() - 50;
        upload.ack += 2 * SEGMENT;
        let packet = upload.packet(&[]);
        upload.machine.handle(upload.now, Input::Incoming(packet));
        upload.drain();
        let timestamps = Timestamps { ts_val: TcpTimestamp::new(upload.millis()), ts_ecr: TcpTimestamp::new(n) };
        let upload_key = key().reversed();
        let data =
            NewSegment::data(&upload_key, Seq::new(upload.ack), Seq::new(7), 1000, Some(timestamps), &[0; 100]);
        upload
            .machine
            .handle(upload.now, Input::Captured { packet: PacketBytes(data.emit().unwrap()), length: 1500 });
        upload.drain();
    }
    upload.gateway_answers = false;
    assert_eq!(unreachables(&upload.wait(3000)), []);
    upload.gateway_answers = true;
    let after = unreachables(&upload.wait(200));
    let message = IcmpUnreachable { four_tuple: key().reversed(), seq: Seq::new(upload.ack) };
    assert!(after.len() >= 3 && after.iter().all(|one| *one == (None, message)), "{after:?}");
}

#[test]
fn an_outage_freezes_the_sender_as_published_over_the_secondary_link() {
    let mut download = Download::new(&[Mechanism::ZeroWindowFreeze]);
    download.run(1000);
    download.gateway_answers = false;
    let during = acks(&download.wait(1000));
    assert_eq!(during.iter().map(|(link, ack)| (*link, ack.window)).collect::<Vec<_>>(), [(CELL, 0)]);
    download.gateway_answers = true;
    let after = acks(&download.wait(30));
    assert_eq!(after.iter().map(|(link, ack)| (*link, ack.window)).collect::<Vec<_>>(), [(WIFI, 1000)]);
}

#[test]
fn a_flow_that_cannot_be_fetched_is_not_frozen_and_its_status_gives_the_reason() {
    let mut download = Download::new(&[Mechanism::FreezeInFlight]);
    download.run(1000);
    download.gateway_answers = false;
    assert_eq!(acks(&download.wait(1000)), []);
    assert!(download.machine.links(download.now)[0].is_down);
    let acks_sent = download.machine.flows(download.now)[0].inactive_reason();
    assert_eq!(acks_sent.as_deref(), Some("it is not frozen, as its bytes cannot be had elsewhere"));
}

#[test]
fn acks_use_the_secondary_link_up_to_its_rate_and_the_newest_arrives() {
    let mut download = Download::new(&[Mechanism::AckOffload]);
    let mut config = download.machine.config().clone();
    config.secondary_links[0].up = Some(Bitrate::from_bits_per_sec(100_000));
    download.machine = Accelerator::new(config);
    download.run(9000);
    let second = download.run(1000);
    let (mut over_cell, mut bytes) = (vec![], 0);
    for output in &second {
        if let Output::Send { link: CELL, packet } = output {
            over_cell.push(packet);
            bytes += packet.0.len();
        }
    }
    assert!((10_000..=11_400).contains(&bytes), "{bytes} of 11250 bytes");
    let suppressed = second.iter().filter(|output| **output == Output::Suppress).count();
    assert_eq!(suppressed, 1000, "every ACK");
    let later_acks = acks(&download.wait(50));
    let newest = later_acks.last().or(acks(&second).last()).unwrap().1.ack;
    assert_eq!(newest, Seq::new(download.ack));
}

#[test]
fn a_flow_with_holes_keeps_its_acks_on_the_primary_link() {
    let mut download = Download::new(&[Mechanism::AckOffload]);
    assert!(!download.run(5000).contains(&Output::Suppress), "it may be in slow start");
    assert!(download.run(4000).contains(&Output::Suppress));
    let hole = download.ack + SEGMENT;
    for n in 1..20 {
        let outputs = download.send_ack(&[(hole, hole + n * SEGMENT)]);
        assert!(matches!(outputs.last(), Some(Output::Forward(_))), "{outputs:?}");
        download.wait(1);
    }
    download.ack = hole + 20 * SEGMENT;
    let (closing, late_outputs) = (download.send_ack(&[]), download.wait(100));
    let all = acks(&closing).into_iter().chain(acks(&late_outputs));
    assert!(all.filter(|(_, ack)| ack.ack == Seq::new(download.ack)).all(|(link, _)| link == WIFI));
    assert!(download.run(500).contains(&Output::Suppress), "and not for ever");
}

#[test]
fn an_upload_is_restarted_when_the_link_has_recovered_and_not_before() {
    let mut upload = Download::new(&[Mechanism::WithheldAck]);
    let arrive = |upload: &mut Download| {
        upload.wait(1);
        upload.ts_val = upload.millis() - 50;
        upload.ack += 2 * SEGMENT;
        let packet = upload.packet(&[]);
        upload.machine.handle(upload.now, Input::Incoming(packet));
        upload.drain()
    };
    let mut last = vec![];
    for _ in 0..500 {
        last = arrive(&mut upload);
    }
    assert_eq!(acks(&last)[0].1.ack, Seq::new(upload.ack - 1));
    upload.gateway_answers = false;
    let delivered =
        |outputs: &[Output]| outputs.iter().filter(|output| matches!(output, Output::Deliver(_))).count();
    let during = upload.wait(380);
    assert!(upload.machine.links(upload.now)[0].is_down);
    let after_outage = upload.wait(3000);
    assert_eq!(
        (delivered(&during), delivered(&after_outage)),
        (0, 0),
        "a restart ACK during the outage would be used up"
    );
    upload.gateway_answers = true;
    let after = upload.wait(200);
    assert!((1..=3).contains(&delivered(&after)), "{after:?}");
    let Some(Output::Deliver(packet)) = after.iter().find(|output| matches!(output, Output::Deliver(_))) else {
        panic!()
    };
    assert_eq!(Segment::parse(&packet.0).unwrap().ack(), Some(Seq::new(upload.ack)));
}
