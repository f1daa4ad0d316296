//! A D-Bus client that can do one thing: call a method with strings, and read the answer.
//!
//! In: the bus's socket and a time limit for everything together. Out: [`Value`]s.
//!
//! 1. Calls carry NO_AUTO_START: asking must not start a service that the user does not run.
//! 2. Nothing of the answer is trusted: lengths, depth and size are bounded, unknown types end the reading.
//! 3. All waiting counts against one limit, the connection included.
//!
//! `zbus` was not used (its runtime, macros and some forty crates for three questions), nor `rustbus` (its socket
//! cannot be given one limit for everything). The protocol is that of the D-Bus Specification, "Message Protocol" and
//! "Authentication Protocol".

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};

/// A connection to a bus.
pub(crate) struct Bus {
    stream: UnixStream,
    deadline: Instant,
    serial: u32,
}

/// Where the system's bus listens.
pub(crate) const SYSTEM_BUS: &str = "/run/dbus/system_bus_socket";

/// chosen: answers of those services have some hundred bytes; the protocol would allow 128 MiB.
const LARGEST: usize = 1 << 20;

impl Bus {
    /// Connects, authenticates as this user and says hello.
    pub(crate) fn connect(socket: &Path, limit: Duration) -> io::Result<Self> {
        let deadline = Instant::now() + limit;
        let unconnected = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // On a Unix socket the send timeout also limits the connection.
        unconnected.set_write_timeout(Some(limit))?;
        unconnected.connect(&SockAddr::unix(socket)?)?;
        let stream = UnixStream::from(OwnedFd::from(unconnected));
        let mut bus = Self { stream, deadline, serial: 0 };
        let uid: String =
            rustix::process::geteuid().as_raw().to_string().bytes().map(|b| format!("{b:02x}")).collect();
        bus.stream.write_all(format!("\0AUTH EXTERNAL {uid}\r\n").as_bytes())?;
        if !bus.line()?.starts_with("OK ") {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the bus refuses this user"));
        }
        bus.stream.write_all(b"BEGIN\r\n")?;
        const SELF: &str = "org.freedesktop.DBus";
        bus.call(SELF, "/org/freedesktop/DBus", SELF, "Hello", &[])?;
        Ok(bus)
    }

    /// Calls a method that takes strings.
    pub(crate) fn call(
        &mut self,
        service: &str,
        object: &str,
        interface: &str,
        method: &str,
        arguments: &[&str],
    ) -> io::Result<Vec<Value>> {
        self.serial += 1;
        let message = call(self.serial, [object, interface, method, service], arguments);
        self.stream.write_all(&message)?;
        loop {
            let answer = self.message()?;
            if answer.replies_to == self.serial {
                return if answer.is_error { Err(io::Error::other(answer.error)) } else { Ok(answer.values) };
            }
        }
    }

    /// Reads a property.
    pub(crate) fn property(
        &mut self,
        service: &str,
        object: &str,
        interface: &str,
        name: &str,
    ) -> io::Result<Value> {
        const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
        let mut values = self.call(service, object, PROPERTIES, "Get", &[interface, name])?;
        values.pop().ok_or_else(malformed)
    }

    /// A line of the authentication.
    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") && line.len() < 512 {
            let mut byte = [0];
            self.fill(&mut byte)?;
            line.push(byte[0]);
        }
        String::from_utf8(line).map_err(|_| malformed())
    }

    fn message(&mut self) -> io::Result<Answer> {
        let mut head = [0; 16];
        self.fill(&mut head)?;
        let size = |at: usize| order(&head)?.u32(head.get(at..at + 4)?).try_into().ok();
        let (body, fields): (usize, usize) = size(4).zip(size(12)).ok_or_else(malformed)?;
        if body > LARGEST || fields > LARGEST {
            return Err(malformed());
        }
        let mut bytes = head.to_vec();
        bytes.resize(16 + fields.div_ceil(8) * 8 + body, 0);
        self.fill(&mut bytes[16..])?;
        answer(&bytes).ok_or_else(malformed)
    }

    /// `read_exact` within the limit.
    fn fill(&mut self, mut buffer: &mut [u8]) -> io::Result<()> {
        while !buffer.is_empty() {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => buffer = &mut buffer[read..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the bus sends what cannot be read")
}

/// A value of the answer. Variants are opened; structures, arrays and dictionary entries are lists.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Value {
    /// Any integer or boolean, as its bits.
    Number(u64),
    /// A string, an object's path or a signature.
    Text(String),
    /// An array of bytes.
    Bytes(Vec<u8>),
    /// Several values.
    List(Vec<Value>),
}

impl Value {
    pub(crate) fn number(&self) -> Option<u64> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        if let Self::Bytes(bytes) = self { Some(bytes) } else { None }
    }

    /// The parts; none of anything else than a list.
    pub(crate) fn list(&self) -> &[Value] {
        if let Self::List(values) = self { values } else { &[] }
    }
}

/// METHOD_CALL with its header fields: path, interface, member, destination, signature.
fn call(serial: u32, [object, interface, method, service]: [&str; 4], arguments: &[&str]) -> Vec<u8> {
    const METHOD_CALL: u8 = 1;
    const NO_AUTO_START: u8 = 2;
    let mut body = Vec::new();
    arguments.iter().for_each(|argument| string(&mut body, argument));
    let mut fields = Vec::new();
    for (field, kind, text) in [(1, b'o', object), (2, b's', interface), (3, b's', method), (6, b's', service)] {
        pad(&mut fields, 8);
        fields.extend([field, 1, kind, 0]);
        string(&mut fields, text);
    }
    if !arguments.is_empty() {
        pad(&mut fields, 8);
        fields.extend([8, 1, b'g', 0, arguments.len() as u8]);
        fields.extend(std::iter::repeat_n(b's', arguments.len()));
        fields.push(0);
    }
    let mut message = vec![b'l', METHOD_CALL, NO_AUTO_START, 1];
    for number in [body.len() as u32, serial, fields.len() as u32] {
        message.extend(number.to_le_bytes());
    }
    message.extend(fields);
    pad(&mut message, 8);
    message.extend(body);
    message
}

fn string(to: &mut Vec<u8>, text: &str) {
    pad(to, 4);
    to.extend((text.len() as u32).to_le_bytes());
    to.extend(text.as_bytes());
    to.push(0);
}

fn pad(to: &mut Vec<u8>, multiple: usize) {
    to.resize(to.len().div_ceil(multiple) * multiple, 0);
}

/// What came back.
#[derive(Default)]
struct Answer {
    replies_to: u32,
    is_error: bool,
    error: String,
    values: Vec<Value>,
}

fn answer(bytes: &[u8]) -> Option<Answer> {
    const ERROR: u8 = 3;
    let mut answer = Answer { is_error: *bytes.get(1)? == ERROR, ..Answer::default() };
    let mut reader = Reader { order: order(bytes)?, bytes, at: 12 };
    let mut signature = String::new();
    for field in reader.value(b"a(yv)", 0)?.0.list() {
        match field.list() {
            [Value::Number(4), Value::Text(name)] => answer.error.clone_from(name),
            [Value::Number(5), Value::Number(serial)] => answer.replies_to = u32::try_from(*serial).ok()?,
            [Value::Number(8), Value::Text(text)] => signature.clone_from(text),
            _ => {}
        }
    }
    reader.align(8)?;
    let mut left = signature.as_bytes();
    while !left.is_empty() {
        let (value, rest) = reader.value(left, 0)?;
        answer.values.push(value);
        left = rest;
    }
    Some(answer)
}

#[derive(Clone, Copy)]
enum Order {
    Little,
    Big,
}

impl Order {
    fn u32(self, bytes: &[u8]) -> u32 {
        self.number(bytes) as u32
    }

    fn number(self, bytes: &[u8]) -> u64 {
        let add = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        match self {
            Self::Little => bytes.iter().rev().fold(0, add),
            Self::Big => bytes.iter().fold(0, add),
        }
    }
}

/// The byte order that the sender of the message chose.
fn order(message: &[u8]) -> Option<Order> {
    match message.first()? {
        b'l' => Some(Order::Little),
        b'B' => Some(Order::Big),
        _ => None,
    }
}

/// Reads values by their signature.
struct Reader<'a> {
    order: Order,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// The next value, and the signature behind it.
    fn value<'s>(&mut self, signature: &'s [u8], depth: u8) -> Option<(Value, &'s [u8])> {
        /// The specification allows 32 arrays in 32 structures; what is asked for here has four levels.
        const DEEPEST: u8 = 16;
        if depth > DEEPEST {
            return None;
        }
        let (code, rest) = signature.split_first()?;
        let value = match code {
            b'y' => Value::Number(u64::from(self.take(1)?[0])),
            b'n' | b'q' => self.number(2)?,
            b'b' | b'i' | b'u' | b'h' => self.number(4)?,
            b'x' | b't' | b'd' => self.number(8)?,
            b's' | b'o' => {
                let length = self.length()?;
                self.text(length)?
            }
            b'g' => {
                let length = usize::from(self.take(1)?[0]);
                self.text(length)?
            }
            b'v' => {
                let length = usize::from(self.take(1)?[0]);
                let Value::Text(inner) = self.text(length)? else { return None };
                self.value(inner.as_bytes(), depth + 1)?.0
            }
            b'a' => return self.array(rest, depth),
            b'(' | b'{' => return self.structure(rest, depth),
            _ => return None,
        };
        Some((value, rest))
    }

    fn array<'s>(&mut self, element: &'s [u8], depth: u8) -> Option<(Value, &'s [u8])> {
        let rest = element.get(width(element)?..)?;
        let length = self.length()?;
        if element.first() == Some(&b'y') {
            return Some((Value::Bytes(self.take(length)?.to_vec()), rest));
        }
        self.align(if matches!(element.first()?, b'x' | b't' | b'd' | b'(' | b'{') { 8 } else { 1 })?;
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len())?;
        let mut values = Vec::new();
        while self.at < end {
            let before = self.at;
            values.push(self.value(element, depth + 1)?.0);
            // An element of no bytes, `()`, would go on for ever.
            if self.at == before {
                return None;
            }
        }
        (self.at == end).then_some((Value::List(values), rest))
    }

    fn structure<'s>(&mut self, mut signature: &'s [u8], depth: u8) -> Option<(Value, &'s [u8])> {
        self.align(8)?;
        let mut values = Vec::new();
        while !matches!(signature.first()?, b')' | b'}') {
            let (value, rest) = self.value(signature, depth + 1)?;
            values.push(value);
            signature = rest;
        }
        Some((Value::List(values), &signature[1..]))
    }

    fn number(&mut self, size: usize) -> Option<Value> {
        self.align(size)?;
        Some(Value::Number(self.order.number(self.take(size)?)))
    }

    fn length(&mut self) -> Option<usize> {
        self.align(4)?;
        usize::try_from(self.order.u32(self.take(4)?)).ok()
    }

    /// A string of this length and the zero behind it.
    fn text(&mut self, length: usize) -> Option<Value> {
        let bytes = self.take(length)?;
        self.take(1)?;
        Some(Value::Text(std::str::from_utf8(bytes).ok()?.to_owned()))
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let bytes = self.bytes.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        Some(bytes)
    }

    fn align(&mut self, multiple: usize) -> Option<()> {
        self.at = self.at.div_ceil(multiple) * multiple;
        (self.at <= self.bytes.len()).then_some(())
    }
}

/// How many characters the first complete type of a signature has.
fn width(signature: &[u8]) -> Option<usize> {
    let mut open = 0_usize;
    for (at, code) in signature.iter().enumerate() {
        match code {
            b'(' | b'{' => open += 1,
            b')' | b'}' => open = open.checked_sub(1)?,
            _ => {}
        }
        if open == 0 && *code != b'a' {
            return Some(at + 1);
        }
    }
    None
}

#[cfg(test)]
pub(super) mod tests {
    use std::thread::JoinHandle;

    use proptest::prelude::*;

    use super::*;

    /// A call that a service received; its arguments are strings.
    pub(in crate::links) struct Call {
        pub(in crate::links) object: String,
        pub(in crate::links) method: String,
        pub(in crate::links) arguments: Vec<String>,
        sender: String,
        serial: u32,
    }

    /// Signature and body of an answer; an error if there is none.
    type Said = Option<(&'static str, Vec<u8>)>;

    /// A service on a bus, until it is dropped.
    pub(in crate::links) struct Service {
        stream: UnixStream,
        thread: Option<JoinHandle<()>>,
    }

    impl Service {
        /// Takes the name and answers each call with signature and body, or with an error.
        pub(in crate::links) fn start(socket: &Path, name: &str, behaviour: fn(&Call) -> Said) -> Self {
            let mut bus = Bus::connect(socket, Duration::from_secs(60)).unwrap();
            let stream = bus.stream.try_clone().unwrap();
            // RequestName(name, flags): the only call here that needs a number too.
            const SELF: &str = "org.freedesktop.DBus";
            let mut request = call(2, ["/org/freedesktop/DBus", SELF, "RequestName", SELF], &[name, ""]);
            let signature = request.windows(3).position(|w| w == b"ss\0").unwrap();
            request[signature + 1] = b'u';
            // An empty string is four zeros and one more; as a number it is those four.
            request.pop();
            let body = u32::from_le_bytes(request[4..8].try_into().unwrap()) - 1;
            request[4..8].copy_from_slice(&body.to_le_bytes());
            bus.serial = 2;
            bus.stream.write_all(&request).unwrap();
            while bus.message().unwrap().replies_to != 2 {}
            let thread = std::thread::spawn(move || {
                while let Some(call) = bus.receive() {
                    let answer = answer_to(&call, behaviour(&call));
                    bus.stream.write_all(&answer).unwrap();
                }
            });
            Self { stream, thread: Some(thread) }
        }
    }

    impl Drop for Service {
        fn drop(&mut self) {
            let _ = self.stream.shutdown(std::net::Shutdown::Both);
            let _ = self.thread.take().map(JoinHandle::join);
        }
    }

    impl Bus {
        /// The next call; nothing when the connection is over.
        fn receive(&mut self) -> Option<Call> {
            loop {
                let mut head = [0; 16];
                self.fill(&mut head).ok()?;
                let order = order(&head)?;
                let (body, fields) = (order.u32(&head[4..8]) as usize, order.u32(&head[12..16]) as usize);
                let mut bytes = head.to_vec();
                bytes.resize(16 + fields.div_ceil(8) * 8 + body, 0);
                self.fill(&mut bytes[16..]).ok()?;
                if bytes[1] != 1 {
                    continue;
                }
                let fields = Reader { order, bytes: &bytes, at: 12 }.value(b"a(yv)", 0)?.0;
                let field = |number: u64| {
                    let is = |entry: &&Value| entry.list()[0] == Value::Number(number);
                    fields
                        .list()
                        .iter()
                        .find(is)
                        .and_then(|entry| entry.list()[1].text())
                        .unwrap_or_default()
                        .to_owned()
                };
                let arguments = answer(&bytes)?.values.iter().filter_map(|v| v.text().map(str::to_owned)).collect();
                let serial = order.u32(&bytes[8..12]);
                return Some(Call { object: field(1), method: field(3), arguments, sender: field(7), serial });
            }
        }
    }

    /// METHOD_RETURN or ERROR.
    fn answer_to(call: &Call, said: Said) -> Vec<u8> {
        let kind = if said.is_some() { 2 } else { 3 };
        let (signature, body) = said.unwrap_or_default();
        let mut fields = vec![5, 1, b'u', 0];
        fields.extend(call.serial.to_le_bytes());
        fields.extend([6, 1, b's', 0]);
        string(&mut fields, &call.sender);
        pad(&mut fields, 8);
        if kind == 3 {
            fields.extend([4, 1, b's', 0]);
            string(&mut fields, "org.example.Unknown");
        } else {
            fields.extend([8, 1, b'g', 0, signature.len() as u8]);
            fields.extend(signature.as_bytes());
            fields.push(0);
        }
        let mut message = vec![b'l', kind, 1, 1];
        for number in [body.len() as u32, call.serial + 100, fields.len() as u32] {
            message.extend(number.to_le_bytes());
        }
        message.extend(fields);
        pad(&mut message, 8);
        message.extend(body);
        message
    }

    fn read(signature: &str, order: Order, bytes: &[u8]) -> Option<Value> {
        Reader { order, bytes, at: 0 }.value(signature.as_bytes(), 0).map(|(value, _)| value)
    }

    #[test]
    fn values_of_each_type_and_byte_order_are_read() {
        let number = |n| Some(Value::Number(n));
        assert_eq!(read("u", Order::Little, &[1, 2, 0, 0]), number(0x201));
        assert_eq!(read("u", Order::Big, &[0, 0, 2, 1]), number(0x201));
        assert_eq!(read("q", Order::Big, &[2, 1]), number(0x201));
        assert_eq!(read("t", Order::Little, &[1; 8]), number(0x0101_0101_0101_0101));
        assert_eq!(read("v", Order::Little, &[1, b'y', 0, 9]), number(9));
        assert_eq!(read("s", Order::Little, b"\x02\0\0\0hi\0"), Some(Value::Text("hi".into())));
        assert_eq!(read("ay", Order::Little, b"\x02\0\0\0\x07\x08"), Some(Value::Bytes(vec![7, 8])));
        let list = Some(Value::List(vec![Value::Number(1), Value::Number(2)]));
        assert_eq!(read("(uu)", Order::Little, &[1, 0, 0, 0, 2, 0, 0, 0]), list);
        assert_eq!(read("au", Order::Little, &[8, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]), list);
        let empty = read("aa{sv}", Order::Little, &[0; 4]);
        assert_eq!(empty, Some(Value::List(Vec::new())));
    }

    #[test]
    fn what_cannot_be_read_is_nothing() {
        for (signature, bytes) in [
            ("u", &[1, 2][..]),
            ("s", b"\xff\xff\xff\xffhi\0"),
            ("s", b"\x02\0\0\0\xff\xff\0"),
            ("au", &[3, 0, 0, 0, 1, 0, 0, 0]),
            ("(u", &[1, 0, 0, 0]),
            ("a", &[0; 8]),
            ("z", &[0; 8]),
            ("", &[]),
            ("v", &[1, b'v', 0]),
            ("a()", &[8; 32]),
        ] {
            assert_eq!(read(signature, Order::Little, bytes), None, "{signature}");
        }
        let deep = [&b"\x01v\0"[..]].concat().repeat(40);
        assert_eq!(read("v", Order::Little, &deep), None, "variants in variants");
        assert_eq!(read(&format!("{}u", "a".repeat(60)), Order::Little, &[4, 0, 0, 0].repeat(80)), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            signature in "[a(){}vsuyg]{0,12}",
        ) {
            read(&signature, Order::Little, &bytes);
            let mut message = vec![b'l', 2, 0, 1];
            message.extend(bytes);
            answer(&message);
        }
    }
}
