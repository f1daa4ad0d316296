//! A minimal D-Bus client: calls a method with string arguments and parses the reply.
//!
//! 1. Calls carry NO_AUTO_START: a query must not start a service that the user does not run.
//! 2. Replies are not trusted: lengths, depth and size are bounded, and an unknown type is an error.
//! 3. One time limit covers all waiting, the connection included.
//!
//! `zbus` was not used (it brings a runtime, macros and some forty crates for three queries), nor `rustbus` (its
//! socket does not support one limit for everything). The protocol is that of the D-Bus Specification, "Message
//! Protocol" and "Authentication Protocol".

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod service;
mod value;

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};

pub(crate) use value::Value;
use value::{ValueReader, byte_order};

/// A connection to a bus, with the deadline of all its operations.
pub(crate) struct Bus {
    stream: UnixStream,
    deadline: Instant,
    /// Number of the last call.
    serial: u32,
}

/// Our choice: the replies of these services have a few hundred bytes. The protocol would allow 128 MiB.
const MAX_MESSAGE_LEN: usize = 1 << 20;

impl Bus {
    /// Connects, authenticates as this user, and sends the Hello call.
    pub(crate) fn connect(socket: &Path, limit: Duration) -> io::Result<Self> {
        let deadline = Instant::now() + limit;
        let unconnected = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // On a unix socket the send timeout also limits `connect`.
        unconnected.set_write_timeout(Some(limit))?;
        unconnected.connect(&SockAddr::unix(socket)?)?;
        let stream = UnixStream::from(OwnedFd::from(unconnected));
        let mut bus = Self { stream, deadline, serial: 0 };
        let uid = rustix::process::geteuid().as_raw().to_string();
        let uid = data_encoding::HEXLOWER.encode(uid.as_bytes());
        bus.stream.write_all(format!("\0AUTH EXTERNAL {uid}\r\n").as_bytes())?;
        if !bus.read_auth_line()?.starts_with("OK ") {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the D-Bus daemon refuses this user"));
        }
        bus.stream.write_all(b"BEGIN\r\n")?;
        const BUS_NAME: &str = "org.freedesktop.DBus";
        bus.call(BUS_NAME, "/org/freedesktop/DBus", BUS_NAME, "Hello", &[])?;
        Ok(bus)
    }

    /// Calls a method with string arguments, and returns the values of its reply.
    pub(crate) fn call(
        &mut self,
        service: &str,
        object: &str,
        interface: &str,
        method: &str,
        arguments: &[&str],
    ) -> io::Result<Vec<Value>> {
        self.serial += 1;
        let message = method_call(self.serial, [object, interface, method, service], arguments);
        self.stream.write_all(&message)?;
        loop {
            let reply = self.read_message()?;
            if reply.reply_serial == self.serial {
                return if reply.is_error { Err(io::Error::other(reply.error_name)) } else { Ok(reply.values) };
            }
        }
    }

    /// Reads a property of an object.
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

    /// Reads a line of the authentication protocol.
    fn read_auth_line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") && line.len() < 512 {
            let mut byte = [0];
            self.read_exact(&mut byte)?;
            line.push(byte[0]);
        }
        String::from_utf8(line).map_err(|_| malformed())
    }

    fn read_message(&mut self) -> io::Result<Reply> {
        let mut head = [0; 16];
        self.read_exact(&mut head)?;
        let size = |at: usize| byte_order(&head)?.u32(head.get(at..at + 4)?).try_into().ok();
        let (body, fields): (usize, usize) = size(4).zip(size(12)).ok_or_else(malformed)?;
        if body > MAX_MESSAGE_LEN || fields > MAX_MESSAGE_LEN {
            return Err(malformed());
        }
        let mut bytes = head.to_vec();
        bytes.resize(16 + fields.div_ceil(8) * 8 + body, 0);
        self.read_exact(&mut bytes[16..])?;
        parse_message(&bytes).ok_or_else(malformed)
    }

    /// Like `Read::read_exact`, until the deadline.
    fn read_exact(&mut self, mut buffer: &mut [u8]) -> io::Result<()> {
        while !buffer.is_empty() {
            let time_left = self.deadline.saturating_duration_since(Instant::now());
            if time_left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(time_left))?;
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
    io::Error::new(io::ErrorKind::InvalidData, "malformed message from the D-Bus daemon")
}

/// Builds a METHOD_CALL with the header fields path, interface, member, destination and signature.
fn method_call(serial: u32, [object, interface, method, service]: [&str; 4], arguments: &[&str]) -> Vec<u8> {
    const METHOD_CALL: u8 = 1;
    const NO_AUTO_START: u8 = 2;
    let mut body = Vec::new();
    arguments.iter().for_each(|argument| put_string(&mut body, argument));
    let mut fields = Vec::new();
    for (field, kind, text) in [(1, b'o', object), (2, b's', interface), (3, b's', method), (6, b's', service)] {
        pad(&mut fields, 8);
        fields.extend([field, 1, kind, 0]);
        put_string(&mut fields, text);
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

fn put_string(out: &mut Vec<u8>, text: &str) {
    pad(out, 4);
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text.as_bytes());
    out.push(0);
}

fn pad(out: &mut Vec<u8>, multiple: usize) {
    out.resize(out.len().div_ceil(multiple) * multiple, 0);
}

/// A reply message: METHOD_RETURN or ERROR.
#[derive(Default)]
struct Reply {
    /// Number of the call that is answered.
    reply_serial: u32,
    is_error: bool,
    error_name: String,
    values: Vec<Value>,
}

fn parse_message(bytes: &[u8]) -> Option<Reply> {
    const ERROR: u8 = 3;
    let mut reply = Reply { is_error: *bytes.get(1)? == ERROR, ..Reply::default() };
    let mut reader = ValueReader { byte_order: byte_order(bytes)?, bytes, offset: 12 };
    let mut signature = String::new();
    for field in reader.read_value(b"a(yv)", 0)?.0.as_list() {
        match field.as_list() {
            [Value::Number(4), Value::Text(name)] => reply.error_name.clone_from(name),
            [Value::Number(5), Value::Number(serial)] => reply.reply_serial = u32::try_from(*serial).ok()?,
            [Value::Number(8), Value::Text(text)] => signature.clone_from(text),
            _ => {}
        }
    }
    reader.align(8)?;
    let mut signature_left = signature.as_bytes();
    while !signature_left.is_empty() {
        let (value, remaining_signature) = reader.read_value(signature_left, 0)?;
        reply.values.push(value);
        signature_left = remaining_signature;
    }
    Some(reply)
}

#[cfg(test)]
mod tests;
