//! Store in Redis for several processes: one server, or a cluster.
//!
//! Keys:
//!
//! | key | what |
//! |---|---|
//! | `marline:{REGION}:lead` | the leader: `holder`, `epoch`, `place` (its address); expires by itself |
//! | `marline:{REGION}:epoch` | the greatest epoch so far |
//! | `marline:{REGION}:said` | entries such as drains by operators: key → `UNTIL VALUE` |
//! | `marline:{REGION}:members` | rows of members ([`Row`]); expires if no process leads for a day |
//! | `marline:spent:NONCE` | a used token, in whichever region |
//! | `marline:newest:NAME` | a numbered text, such as the revocation list |
//!
//! 1. The braces (a "hash tag" of Redis Cluster) put all keys of a region into one slot, so that a script may use several of them.
//! 2. Operations that must be atomic are scripts: checking and taking the leadership, and writing rows while leading.
//! 3. Calls do not wait for replication: a primary that fails may lose its latest writes. Two processes may then lead in one epoch for
//!    the rest of a lease. Relays notice this by a version that does not exist yet, and the later leader raises the epoch. A nonce is
//!    also recorded in the file `spent` of the process that claimed it.
//! 4. The leader's key needs some hundred bytes, and may be written when Redis has reached its memory limit (`allow-oom`, Redis 7).
//! 5. Redis may contain invalid data. An epoch that is not a whole number below 10^15, where a Lua number is still exact, is refused
//!    ([`EPOCH_LIMIT`]); the error names the key and how to repair it. Until then no process leads.
//! 6. Each call waits one second for a connection and one second for a response. Scripts are sent in full each time: Redis may have
//!    been restarted, and a cluster may have a different primary than before.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::cluster::ClusterClient;
use redis::io::tcp::TcpSettings;
use redis::{
    Client, ConnectionAddr, ConnectionInfo, ConnectionLike, FromRedisValue, IntoConnectionInfo,
    RedisConnectionInfo, RedisError, TlsCertificates, cmd,
};

use marline_net::printable::printable;
use socket2::TcpKeepalive;

use super::Row;
use super::{Bid, BidOutcome, Entry, Leader, RETENTION, RedisNodes, Store, StoreError, unix_seconds};
use crate::ca::{Nonce, UtcSeconds};
use crate::identity::Name;

/// The password, and the certificate authority that authenticates Redis.
#[derive(Clone, Default)]
pub struct RedisSecrets {
    /// Password of the user; none: no authentication.
    pub password: Option<String>,
    /// The authority that has signed the server's certificate, in PEM; none: the system's authorities.
    pub authority: Option<Vec<u8>>,
}

impl std::fmt::Debug for RedisSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MASKED")
    }
}

/// A connection to Redis and its parameters.
pub struct RedisStore {
    nodes: RedisNodes,
    region: Name,
    secrets: RedisSecrets,
    /// The open connection; none after an error.
    connection: Option<Box<dyn ConnectionLike + Send>>,
}

/// Rule 6. Our choice: three timeouts are shorter than the rest of a lease when it is renewed.
const IO_TIMEOUT: Duration = Duration::from_secs(1);
/// Our choice: rows of members without a leader for a day are of no use.
const ROWS_TTL_SECONDS: u64 = 86_400;
/// Our choice: a reply of some hundred kilobytes.
const SCAN_COUNT: usize = 500;

/// The first epoch that is refused (rule 5). In the script: more than fifteen digits.
const EPOCH_LIMIT: u64 = 1_000_000_000_000_000;

/// Rule 2: a bid. Keys: lead, epoch, members. Arguments: holder, address, its epoch or 0, minimum epoch, lease in ms, lifetime of the
/// rows in seconds. A bid extends the lifetime of the rows, because a leader writes none while nothing changes.
const LEAD_SCRIPT: &str = "#!lua flags=allow-oom
local function whole(text)
  if not text then return 0 end
  if #text > 15 or not string.match(text, '^%d+$') then return nil end
  return tonumber(text)
end
local lead = redis.call('HMGET', KEYS[1], 'holder', 'epoch', 'place')
if lead[1] and lead[1] ~= ARGV[1] then
  if not whole(lead[2]) then return {'damaged', '1', string.sub(lead[2] or '', 1, 40)} end
  return {'others', lead[2] or '0', string.sub(lead[3] or '', 1, 300)}
end
local last = whole(redis.call('GET', KEYS[2]))
if not last then return {'damaged', '2', string.sub(redis.call('GET', KEYS[2]), 1, 40)} end
local epoch = tonumber(ARGV[3])
local above = tonumber(ARGV[4])
if epoch == 0 or epoch ~= last or epoch <= above then
  epoch = math.max(last, above, epoch) + 1
  redis.call('SET', KEYS[2], string.format('%.0f', epoch))
end
epoch = string.format('%.0f', epoch)
redis.call('HSET', KEYS[1], 'holder', ARGV[1], 'epoch', epoch, 'place', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('EXPIRE', KEYS[3], ARGV[6])
return {'mine', epoch, ''}";

/// Gives up the lease, if the holder still has it. Keys: lead. Arguments: holder.
const RESIGN_SCRIPT: &str =
    "if redis.call('HGET', KEYS[1], 'holder') == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 1";

/// Writes rows, if the epoch is current. Keys: lead, members. Arguments: epoch, lifetime of the rows in seconds, then key and row of each;
/// an empty row is deleted.
const PUT_ROWS_SCRIPT: &str = "if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return 0 end
for i = 3, #ARGV, 2 do
  if ARGV[i + 1] == '' then redis.call('HDEL', KEYS[2], ARGV[i])
  else redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
end
redis.call('EXPIRE', KEYS[2], ARGV[2])
return 1";

/// Stores a text if its number is greater. Keys: the text. Arguments: number, text.
const PUT_IF_NEWER_SCRIPT: &str = "local kept = redis.call('HMGET', KEYS[1], 'number', 'text')
local number = tonumber(kept[1] or '-1')
if number < tonumber(ARGV[1]) then
  redis.call('HSET', KEYS[1], 'number', ARGV[1], 'text', ARGV[2])
  return false
end
if kept[2] == ARGV[2] then return false end
return kept[2]";

impl RedisStore {
    /// A store in these nodes for this region; it does not connect yet.
    ///
    /// # Errors
    /// The certificate authority is not valid PEM, or the address is not valid.
    pub fn new(nodes: RedisNodes, region: Name, secrets: RedisSecrets) -> Result<Self, StoreError> {
        let store = Self { nodes, region, secrets, connection: None };
        // The library checks its parameters here, so that a mistake in the configuration is reported at the start.
        let refused = |error: RedisError| StoreError { store: store.location(), text: error.to_string() };
        match store.single_node() {
            Some(info) => drop(store.client(info).map_err(refused)?),
            None => drop(store.cluster().map_err(refused)?),
        }
        Ok(store)
    }

    fn single_node(&self) -> Option<ConnectionInfo> {
        match self.nodes.nodes.as_slice() {
            [node] => self.connection_info(node).ok(),
            _ => None,
        }
    }

    fn connection_info(&self, (host, port): &(String, u16)) -> Result<ConnectionInfo, RedisError> {
        let (host, port) = (host.clone(), *port);
        let address = match self.nodes.tls {
            true => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
            false => ConnectionAddr::Tcp(host, port),
        };
        let mut settings = RedisConnectionInfo::default().set_db(self.nodes.database);
        if let Some(user) = &self.nodes.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &self.secrets.password {
            settings = settings.set_password(password);
        }
        Ok(address.into_connection_info()?.set_redis_settings(settings).set_tcp_settings(tcp_settings()))
    }

    fn certificates(&self) -> TlsCertificates {
        TlsCertificates { client_tls: None, root_cert: self.secrets.authority.clone() }
    }

    fn client(&self, info: ConnectionInfo) -> Result<Client, RedisError> {
        if self.nodes.tls { Client::build_with_tls(info, self.certificates()) } else { Client::open(info) }
    }

    fn cluster(&self) -> Result<ClusterClient, RedisError> {
        let nodes =
            self.nodes.nodes.iter().map(|node| self.connection_info(node)).collect::<Result<Vec<_>, _>>()?;
        let client = ClusterClient::builder(nodes).tcp_settings(tcp_settings()).retries(2);
        let client = client.connection_timeout(IO_TIMEOUT).response_timeout(IO_TIMEOUT);
        if self.nodes.tls { client.certs(self.certificates()).build() } else { client.build() }
    }

    fn connect(&self) -> Result<Box<dyn ConnectionLike + Send>, RedisError> {
        let Some(info) = self.single_node() else { return Ok(Box::new(self.cluster()?.get_connection()?)) };
        let connection = self.client(info)?.get_connection_with_timeout(IO_TIMEOUT)?;
        connection.set_read_timeout(Some(IO_TIMEOUT))?;
        connection.set_write_timeout(Some(IO_TIMEOUT))?;
        Ok(Box::new(connection))
    }

    fn query<T: FromRedisValue>(&mut self, command: &redis::Cmd) -> Result<T, StoreError> {
        let connected = match self.connection.take() {
            Some(connection) => Ok(connection),
            None => self.connect(),
        };
        let result = connected.and_then(|mut connection| {
            let response = command.query(connection.as_mut());
            // After an error reply the connection is usable only if the error concerns this command alone. OOM does; other
            // error codes may mean that another node is responsible.
            if response.as_ref().err().is_none_or(|error| error.code().is_some_and(|code| code == "OOM")) {
                self.connection = Some(connection);
            }
            response
        });
        result.map_err(|error| StoreError { store: self.location(), text: error.to_string() })
    }

    /// The error for an invalid epoch in Redis.
    fn damaged_epoch(&self, key_name: &str, found: &str) -> StoreError {
        let key = self.key(key_name);
        let text = format!(
            "{key} holds the epoch `{}`, which is not a whole number below {EPOCH_LIMIT}: no process leads until it is repaired. \
             Run `redis-cli DEL {key}`; the service then continues with an epoch above those that relays have seen",
            printable(found)
        );
        StoreError { store: self.location(), text }
    }

    fn key(&self, key_name: &str) -> String {
        format!("marline:{{{}}}:{key_name}", self.region)
    }

    fn script_command(&self, script: &str, keys: &[String]) -> redis::Cmd {
        let mut command = cmd("EVAL");
        command.arg(script).arg(keys.len()).arg(keys);
        command
    }
}

/// TCP settings that end a connection to a vanished server, also during a handshake.
fn tcp_settings() -> TcpSettings {
    let keepalive = TcpKeepalive::new().with_time(IO_TIMEOUT * 2).with_interval(IO_TIMEOUT).with_retries(2);
    TcpSettings::default().set_nodelay(true).set_keepalive(keepalive).set_user_timeout(IO_TIMEOUT * 4)
}

impl Store for RedisStore {
    fn bid(&mut self, bid: &Bid, _now: UtcSeconds) -> Result<BidOutcome, StoreError> {
        let mut command =
            self.script_command(LEAD_SCRIPT, &[self.key("lead"), self.key("epoch"), self.key("members")]);
        let lease = u64::try_from(bid.lease.as_millis()).unwrap_or(u64::MAX);
        command
            .arg(&bid.holder)
            .arg(&bid.address)
            .arg(bid.epoch.unwrap_or(0))
            .arg(bid.min_epoch.min(EPOCH_LIMIT - 2))
            .arg(lease)
            .arg(ROWS_TTL_SECONDS);
        let (outcome, epoch, address): (String, u64, Vec<u8>) = self.query(&command)?;
        let address = String::from_utf8_lossy(&address).into_owned();
        match outcome.as_str() {
            "mine" => Ok(BidOutcome::Won(epoch)),
            "damaged" => Err(self.damaged_epoch(if epoch == 1 { "lead" } else { "epoch" }, &address)),
            _ => Ok(BidOutcome::Lost(Leader { epoch, address })),
        }
    }

    fn put(&mut self, entry: &Entry) -> Result<(), StoreError> {
        let value = format!("{} {}", unix_seconds(entry.expires_at), entry.value);
        self.query(cmd("HSET").arg(self.key("said")).arg(&entry.key).arg(value))
    }

    fn remove(&mut self, key: &str) -> Result<(), StoreError> {
        self.query(cmd("HDEL").arg(self.key("said")).arg(key))
    }

    fn list(&mut self, prefix: &str, now: UtcSeconds) -> Result<Vec<Entry>, StoreError> {
        let all: BTreeMap<String, String> = self.query(cmd("HGETALL").arg(self.key("said")))?;
        let mut found = Vec::new();
        for (key, value) in all {
            let Some((until, value)) = value.split_once(' ') else { continue };
            let until = UtcSeconds::from_unix(until.parse().unwrap_or(0));
            if until.saturating_add(RETENTION) < now {
                self.remove(&key)?;
            } else if until > now && key.starts_with(prefix) {
                found.push(Entry { key, value: value.to_owned(), expires_at: until });
            }
        }
        Ok(found)
    }

    fn claim(&mut self, nonce: Nonce, until: UtcSeconds) -> Result<bool, StoreError> {
        let end = unix_seconds(until.saturating_add(RETENTION));
        let mut command = cmd("SET");
        command.arg(format!("marline:spent:{nonce}")).arg(1).arg("NX").arg("EXAT").arg(end);
        Ok(self.query::<Option<String>>(&command)?.is_some())
    }

    fn location(&self) -> String {
        self.nodes.to_string()
    }

    fn region(&self) -> Option<String> {
        Some(self.region.to_string())
    }

    fn set_secrets(&mut self, secrets: RedisSecrets) -> Result<(), StoreError> {
        *self = Self::new(self.nodes.clone(), self.region.clone(), secrets)?;
        Ok(())
    }

    fn resign(&mut self, holder: &str) -> Result<(), StoreError> {
        let mut command = self.script_command(RESIGN_SCRIPT, &[self.key("lead")]);
        self.query(command.arg(holder))
    }

    fn put_rows(&mut self, epoch: u64, rows: &[Row]) -> Result<bool, StoreError> {
        let mut command = self.script_command(PUT_ROWS_SCRIPT, &[self.key("lead"), self.key("members")]);
        command.arg(epoch).arg(ROWS_TTL_SECONDS);
        for (key, row) in rows {
            command.arg(key).arg(row.as_deref().unwrap_or_default());
        }
        self.query(&command)
    }

    fn rows(&mut self) -> Result<Vec<(String, String)>, StoreError> {
        let (mut rows, mut cursor) = (BTreeMap::new(), 0_u64);
        loop {
            let mut command = cmd("HSCAN");
            command.arg(self.key("members")).arg(cursor).arg("COUNT").arg(SCAN_COUNT);
            let (next, batch): (u64, Vec<(String, String)>) = self.query(&command)?;
            rows.extend(batch);
            if next == 0 {
                return Ok(rows.into_iter().collect());
            }
            cursor = next;
        }
    }

    fn put_if_newer(&mut self, name: &str, number: u64, text: &str) -> Result<Option<String>, StoreError> {
        let mut command = self.script_command(PUT_IF_NEWER_SCRIPT, &[format!("marline:newest:{name}")]);
        self.query(command.arg(number).arg(text))
    }
}
