//! Redis, for several processes: one server, or a cluster.
//!
//! In: calls of [`Store`]. Out: what Redis says.
//!
//! | key | what |
//! |---|---|
//! | `marline:{REGION}:lead` | who leads: `holder`, `epoch`, `place`; ends by itself |
//! | `marline:{REGION}:epoch` | the greatest epoch so far |
//! | `marline:{REGION}:said` | what operators said: key → `UNTIL VALUE` |
//! | `marline:{REGION}:members` | rows of [`share`](super::super::machine::Row); gone when nobody has led for a day |
//! | `marline:spent:NONCE` | a token that was used, in whichever region |
//! | `marline:newest:NAME` | a numbered text, such as the revocation list |
//!
//! 1. The braces make one slot of a region (Redis Cluster, "hash tags"), so that a script may use several of its keys.
//! 2. What must be one step is a script: looking who leads and leading, writing rows and being the one who leads.
//! 3. Replication is not waited for: a primary that dies may take the newest words with it. Then two may lead in one epoch for the
//!    rest of a lease, which relays see by a version that is still to come, and the later one goes on with a later epoch. A nonce is
//!    also in the `spent` of the process that took it.
//! 4. The lead needs some hundred bytes and may be taken when memory has run out (`allow-oom`, Redis 7).
//! 5. Anything may stand in Redis. An epoch that is no whole number below 10^15, where a Lua number is still exact, is refused with its key
//!    and what repairs it ([`EPOCHS`]); nobody leads until then.
//! 6. Each call waits a second for a connection and a second for an answer. Scripts are sent whole each time: Redis may have
//!    been started anew, and a cluster has another primary than before.

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

use super::super::machine::Row;
use super::{Bid, Entry, KEPT, Lead, Leader, Nodes, Store, StoreError, seconds};
use crate::ca::{Nonce, Stamp};
use crate::identity::Name;

/// What only Redis and we know, and whom we take for Redis.
#[derive(Clone, Default)]
pub struct Secrets {
    /// Of the user.
    pub password: Option<String>,
    /// The authority of its certificate, PEM; none: those of the system.
    pub authority: Option<Vec<u8>>,
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MASKED")
    }
}

/// Redis.
pub struct Redis {
    nodes: Nodes,
    region: Name,
    secrets: Secrets,
    /// None after an error.
    connection: Option<Box<dyn ConnectionLike + Send>>,
}

/// Rule 6. chosen: three of them are less than what is left of a lease when it is renewed.
const PATIENCE: Duration = Duration::from_secs(1);
/// chosen: rows of members that nobody has renewed for a day are of no use.
const ROWS_KEPT: u64 = 86_400;
/// chosen: some hundred kilobytes each.
const ROWS_AT_ONCE: usize = 500;

/// The first epoch that is refused (rule 5), as the script has it: a digit more than fifteen.
const EPOCHS: u64 = 1_000_000_000_000_000;

/// Rule 2: the lead. Keys: lead, epoch, members. Arguments: holder, place, its epoch or 0, above, lease in ms, how long rows are kept:
/// where nothing changes for a day none is written, and they stay as long as somebody leads.
const LEAD: &str = "#!lua flags=allow-oom
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

/// Keys: lead. Arguments: holder.
const RESIGN: &str = "if redis.call('HGET', KEYS[1], 'holder') == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 1";

/// Keys: lead, members. Arguments: epoch, how long rows are kept, then key and row of each; an empty row goes.
const SHARE: &str = "if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return 0 end
for i = 3, #ARGV, 2 do
  if ARGV[i + 1] == '' then redis.call('HDEL', KEYS[2], ARGV[i])
  else redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
end
redis.call('EXPIRE', KEYS[2], ARGV[2])
return 1";

/// Keys: the text. Arguments: number, text.
const NEWEST: &str = "local kept = redis.call('HMGET', KEYS[1], 'number', 'text')
local number = tonumber(kept[1] or '-1')
if number < tonumber(ARGV[1]) then
  redis.call('HSET', KEYS[1], 'number', ARGV[1], 'text', ARGV[2])
  return false
end
if kept[2] == ARGV[2] then return false end
return kept[2]";

impl Redis {
    /// Of these nodes, for this region; nothing is connected yet.
    ///
    /// # Errors
    /// The authority is none.
    pub fn new(nodes: Nodes, region: Name, secrets: Secrets) -> Result<Self, StoreError> {
        let store = Self { nodes, region, secrets, connection: None };
        // What the library refuses before it connects is a mistake of the user's.
        let refused = |error: RedisError| StoreError { place: store.place(), text: error.to_string() };
        match store.one() {
            Some(info) => drop(store.client(info).map_err(refused)?),
            None => drop(store.cluster().map_err(refused)?),
        }
        Ok(store)
    }

    fn one(&self) -> Option<ConnectionInfo> {
        match self.nodes.nodes.as_slice() {
            [node] => self.info(node).ok(),
            _ => None,
        }
    }

    fn info(&self, (host, port): &(String, u16)) -> Result<ConnectionInfo, RedisError> {
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
        Ok(address.into_connection_info()?.set_redis_settings(settings).set_tcp_settings(tcp()))
    }

    fn certificates(&self) -> TlsCertificates {
        TlsCertificates { client_tls: None, root_cert: self.secrets.authority.clone() }
    }

    fn client(&self, info: ConnectionInfo) -> Result<Client, RedisError> {
        if self.nodes.tls { Client::build_with_tls(info, self.certificates()) } else { Client::open(info) }
    }

    fn cluster(&self) -> Result<ClusterClient, RedisError> {
        let nodes = self.nodes.nodes.iter().map(|node| self.info(node)).collect::<Result<Vec<_>, _>>()?;
        let client = ClusterClient::builder(nodes).tcp_settings(tcp()).retries(2);
        let client = client.connection_timeout(PATIENCE).response_timeout(PATIENCE);
        if self.nodes.tls { client.certs(self.certificates()).build() } else { client.build() }
    }

    fn connect(&self) -> Result<Box<dyn ConnectionLike + Send>, RedisError> {
        let Some(info) = self.one() else { return Ok(Box::new(self.cluster()?.get_connection()?)) };
        let connection = self.client(info)?.get_connection_with_timeout(PATIENCE)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        connection.set_write_timeout(Some(PATIENCE))?;
        Ok(Box::new(connection))
    }

    fn ask<T: FromRedisValue>(&mut self, command: &redis::Cmd) -> Result<T, StoreError> {
        let connected = match self.connection.take() {
            Some(connection) => Ok(connection),
            None => self.connect(),
        };
        let answered = connected.and_then(|mut connection| {
            let answer = command.query(connection.as_mut());
            // An error that Redis itself has said leaves the connection as it is, unless another node is meant.
            if answer.as_ref().err().is_none_or(|error| error.code().is_some_and(|code| code == "OOM")) {
                self.connection = Some(connection);
            }
            answer
        });
        answered.map_err(|error| StoreError { place: self.place(), text: error.to_string() })
    }

    /// An epoch that cannot be one.
    fn damaged(&self, what: &str, found: &str) -> StoreError {
        let key = self.key(what);
        let text = format!(
            "{key} holds the epoch `{}`, which is no whole number below {EPOCHS}: nothing is matched until it is repaired; \
             `redis-cli DEL {key}` does so: the service goes on with an epoch above those that relays have seen",
            printable(found)
        );
        StoreError { place: self.place(), text }
    }

    fn key(&self, what: &str) -> String {
        format!("marline:{{{}}}:{what}", self.region)
    }

    fn script(&self, script: &str, keys: &[String]) -> redis::Cmd {
        let mut command = cmd("EVAL");
        command.arg(script).arg(keys.len()).arg(keys);
        command
    }
}

/// A server that is gone without a word is given up, in the middle of a handshake as well.
fn tcp() -> TcpSettings {
    let alive = TcpKeepalive::new().with_time(PATIENCE * 2).with_interval(PATIENCE).with_retries(2);
    TcpSettings::default().set_nodelay(true).set_keepalive(alive).set_user_timeout(PATIENCE * 4)
}

impl Store for Redis {
    fn lead(&mut self, bid: &Bid, _now: Stamp) -> Result<Lead, StoreError> {
        let mut command = self.script(LEAD, &[self.key("lead"), self.key("epoch"), self.key("members")]);
        let lease = u64::try_from(bid.lease.as_millis()).unwrap_or(u64::MAX);
        command
            .arg(&bid.holder)
            .arg(&bid.place)
            .arg(bid.epoch.unwrap_or(0))
            .arg(bid.above.min(EPOCHS - 2))
            .arg(lease)
            .arg(ROWS_KEPT);
        let (who, epoch, place): (String, u64, Vec<u8>) = self.ask(&command)?;
        let place = String::from_utf8_lossy(&place).into_owned();
        match who.as_str() {
            "mine" => Ok(Lead::Mine(epoch)),
            "damaged" => Err(self.damaged(if epoch == 1 { "lead" } else { "epoch" }, &place)),
            _ => Ok(Lead::Others(Leader { epoch, place })),
        }
    }

    fn put(&mut self, entry: &Entry) -> Result<(), StoreError> {
        let value = format!("{} {}", seconds(entry.until), entry.value);
        self.ask(cmd("HSET").arg(self.key("said")).arg(&entry.key).arg(value))
    }

    fn remove(&mut self, key: &str) -> Result<(), StoreError> {
        self.ask(cmd("HDEL").arg(self.key("said")).arg(key))
    }

    fn list(&mut self, prefix: &str, now: Stamp) -> Result<Vec<Entry>, StoreError> {
        let all: BTreeMap<String, String> = self.ask(cmd("HGETALL").arg(self.key("said")))?;
        let mut found = Vec::new();
        for (key, value) in all {
            let Some((until, value)) = value.split_once(' ') else { continue };
            let until = Stamp::from_unix(until.parse().unwrap_or(0));
            if until.after(KEPT) < now {
                self.remove(&key)?;
            } else if until > now && key.starts_with(prefix) {
                found.push(Entry { key, value: value.to_owned(), until });
            }
        }
        Ok(found)
    }

    fn claim(&mut self, nonce: Nonce, until: Stamp) -> Result<bool, StoreError> {
        let end = seconds(until.after(KEPT));
        let mut command = cmd("SET");
        command.arg(format!("marline:spent:{nonce}")).arg(1).arg("NX").arg("EXAT").arg(end);
        Ok(self.ask::<Option<String>>(&command)?.is_some())
    }

    fn place(&self) -> String {
        self.nodes.to_string()
    }

    fn region(&self) -> Option<String> {
        Some(self.region.to_string())
    }

    fn secrets(&mut self, secrets: Secrets) -> Result<(), StoreError> {
        *self = Self::new(self.nodes.clone(), self.region.clone(), secrets)?;
        Ok(())
    }

    fn resign(&mut self, holder: &str) -> Result<(), StoreError> {
        let mut command = self.script(RESIGN, &[self.key("lead")]);
        self.ask(command.arg(holder))
    }

    fn share(&mut self, epoch: u64, rows: &[Row]) -> Result<bool, StoreError> {
        let mut command = self.script(SHARE, &[self.key("lead"), self.key("members")]);
        command.arg(epoch).arg(ROWS_KEPT);
        for (key, row) in rows {
            command.arg(key).arg(row.as_deref().unwrap_or_default());
        }
        self.ask(&command)
    }

    fn shared(&mut self) -> Result<Vec<(String, String)>, StoreError> {
        let (mut rows, mut cursor) = (BTreeMap::new(), 0_u64);
        loop {
            let mut command = cmd("HSCAN");
            command.arg(self.key("members")).arg(cursor).arg("COUNT").arg(ROWS_AT_ONCE);
            let (next, some): (u64, Vec<(String, String)>) = self.ask(&command)?;
            rows.extend(some);
            if next == 0 {
                return Ok(rows.into_iter().collect());
            }
            cursor = next;
        }
    }

    fn newest(&mut self, name: &str, number: u64, text: &str) -> Result<Option<String>, StoreError> {
        let mut command = self.script(NEWEST, &[format!("marline:newest:{name}")]);
        self.ask(command.arg(number).arg(text))
    }
}
