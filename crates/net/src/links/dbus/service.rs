//! A D-Bus service that a test implements on a real bus.
#![allow(clippy::unwrap_used, reason = "what a test needs is there, or the test fails")]

use std::thread::JoinHandle;

use super::*;

/// A received method call; all its arguments are strings.
pub(crate) struct Call {
    pub(crate) object: String,
    pub(crate) method: String,
    pub(crate) arguments: Vec<String>,
    sender: String,
    serial: u32,
}

/// Signature and body of a reply; `None`: an error reply.
type ServiceReply = Option<(&'static str, Vec<u8>)>;

/// A running service; dropping it ends the service.
pub(crate) struct Service {
    stream: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Requests the name, and replies to each call with a signature and body, or with an error.
    pub(crate) fn start(socket: &Path, name: &str, behaviour: fn(&Call) -> ServiceReply) -> Self {
        let mut bus = Bus::connect(socket, Duration::from_secs(60)).unwrap();
        let stream = bus.stream.try_clone().unwrap();
        // RequestName(name, flags) is the only call that needs a number, so the message for two strings is patched.
        const SELF: &str = "org.freedesktop.DBus";
        let mut request = method_call(2, ["/org/freedesktop/DBus", SELF, "RequestName", SELF], &[name, ""]);
        let signature = request.windows(3).position(|w| w == b"ss\0").unwrap();
        request[signature + 1] = b'u';
        // An empty string is encoded as five zero bytes; the first four are the number 0.
        request.pop();
        let body = u32::from_le_bytes(request[4..8].try_into().unwrap()) - 1;
        request[4..8].copy_from_slice(&body.to_le_bytes());
        bus.serial = 2;
        bus.stream.write_all(&request).unwrap();
        while bus.read_message().unwrap().reply_serial != 2 {}
        let thread = std::thread::spawn(move || {
            while let Some(call) = bus.receive() {
                let reply = encode_reply(&call, behaviour(&call));
                bus.stream.write_all(&reply).unwrap();
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
    /// The next call; `None` when the connection has ended.
    fn receive(&mut self) -> Option<Call> {
        loop {
            let mut head = [0; 16];
            self.read_exact(&mut head).ok()?;
            let order = byte_order(&head)?;
            let (body, fields) = (order.u32(&head[4..8]) as usize, order.u32(&head[12..16]) as usize);
            let mut bytes = head.to_vec();
            bytes.resize(16 + fields.div_ceil(8) * 8 + body, 0);
            self.read_exact(&mut bytes[16..]).ok()?;
            if bytes[1] != 1 {
                continue;
            }
            let fields = ValueReader { byte_order: order, bytes: &bytes, offset: 12 }.read_value(b"a(yv)", 0)?.0;
            let field = |number: u64| {
                let is_entry = |entry: &&Value| entry.as_list()[0] == Value::Number(number);
                fields
                    .as_list()
                    .iter()
                    .find(is_entry)
                    .and_then(|entry| entry.as_list()[1].as_text())
                    .unwrap_or_default()
                    .to_owned()
            };
            let arguments =
                parse_message(&bytes)?.values.iter().filter_map(|v| v.as_text().map(str::to_owned)).collect();
            let serial = order.u32(&bytes[8..12]);
            return Some(Call { object: field(1), method: field(3), arguments, sender: field(7), serial });
        }
    }
}

/// Builds a METHOD_RETURN or an ERROR.
fn encode_reply(call: &Call, reply: ServiceReply) -> Vec<u8> {
    let kind = if reply.is_some() { 2 } else { 3 };
    let (signature, body) = reply.unwrap_or_default();
    let mut fields = vec![5, 1, b'u', 0];
    fields.extend(call.serial.to_le_bytes());
    fields.extend([6, 1, b's', 0]);
    put_string(&mut fields, &call.sender);
    pad(&mut fields, 8);
    if kind == 3 {
        fields.extend([4, 1, b's', 0]);
        put_string(&mut fields, "org.example.Unknown");
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
