//! Real Redis servers on loopback: a single one, or a cluster of three primaries with one replica each.

use std::process::{Child, Command, Stdio};

use marline_fleet::service::store::{RedisNodes, RedisSecrets, RedisStore, StoreUrl};
use redis::{Client as RedisClient, FromRedisValue, cmd};

use super::*;

/// A Redis server process; stopped when dropped.
pub(super) struct RedisServer {
    pub(super) port: u16,
    dir: TempDir,
    extra_args: Vec<String>,
    child: Option<Child>,
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl RedisServer {
    pub(super) fn start(extra_args: &[&str]) -> Self {
        let extra_args = extra_args.iter().map(|arg| (*arg).to_owned()).collect();
        let mut server = Self { port: free_port(), dir: TempDir::new().unwrap(), extra_args, child: None };
        server.restart();
        server
    }

    /// Starts the server at its port, without any data.
    pub(super) fn restart(&mut self) {
        let port = self.port.to_string();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.args(&self.extra_args).current_dir(self.dir.path()).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().expect("redis-server is needed: .ci/need redis-server:redis-server");
        self.child = Some(child);
        let started_at = std::time::Instant::now();
        while self.try_query::<String>(&["PING"]).is_err() {
            assert!(started_at.elapsed() < Duration::from_secs(60), "redis-server does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills the process with SIGKILL.
    pub(super) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub(super) fn try_query<T: FromRedisValue>(&self, args: &[&str]) -> redis::RedisResult<T> {
        let client = RedisClient::open(format!("redis://127.0.0.1:{}", self.port)).unwrap();
        let mut connection = client.get_connection_with_timeout(Duration::from_secs(5))?;
        let mut command = cmd(args[0]);
        command.arg(&args[1..]);
        command.query(&mut connection)
    }

    pub(super) fn query<T: FromRedisValue>(&self, args: &[&str]) -> T {
        self.try_query(args).unwrap()
    }

    pub(super) fn store(&self) -> Box<dyn Store> {
        store_at(&format!("redis://127.0.0.1:{}", self.port))
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The store at this URL, for the region `test`.
pub(super) fn store_at(url: &str) -> Box<dyn Store> {
    Box::new(RedisStore::new(nodes(url), "test".parse().unwrap(), RedisSecrets::default()).unwrap())
}

pub(super) fn nodes(url: &str) -> RedisNodes {
    match url.parse().unwrap() {
        StoreUrl::Redis(nodes) => nodes,
        StoreUrl::File(path) => panic!("{}", path.display()),
    }
}

/// Three primaries, followed by their replicas.
pub(super) struct RedisCluster(pub(super) Vec<RedisServer>);

impl RedisCluster {
    pub(super) fn start() -> Self {
        let servers: Vec<RedisServer> = (0..6)
            .map(|_| {
                let bus = free_port().to_string();
                RedisServer::start(&[
                    "--cluster-enabled",
                    "yes",
                    "--cluster-node-timeout",
                    "1500",
                    "--cluster-port",
                    &bus,
                ])
            })
            .collect();
        for (at, server) in servers.iter().enumerate() {
            server.query::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]);
            let bus = &server.extra_args[5];
            servers[0].query::<()>(&["CLUSTER", "MEET", "127.0.0.1", &server.port.to_string(), bus]);
        }
        for (server, [from, to]) in servers.iter().zip([[0, 5460], [5461, 10922], [10923, 16383]]) {
            server.query::<()>(&["CLUSTER", "ADDSLOTSRANGE", &from.to_string(), &to.to_string()]);
        }
        let cluster = Self(servers);
        cluster.wait_until("all nodes know each other", |server| {
            server.query::<String>(&["CLUSTER", "NODES"]).lines().filter(|line| !line.contains("handshake")).count()
                == 6
        });
        for at in 0..3 {
            let primary: String = cluster.0[at].query(&["CLUSTER", "MYID"]);
            cluster.0[at + 3].query::<()>(&["CLUSTER", "REPLICATE", &primary]);
        }
        cluster.wait_until("the cluster state is ok", |server| {
            let info: String = server.query(&["CLUSTER", "INFO"]);
            info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
        });
        let has_state = |server: &RedisServer, expected: &str| {
            server.query::<String>(&["INFO", "replication"]).contains(expected)
        };
        cluster.wait_until("replicas are up to date", |server| {
            has_state(server, "connected_slaves:1") || has_state(server, "master_link_status:up")
        });
        cluster
    }

    fn wait_until(&self, description: &str, condition: impl Fn(&RedisServer) -> bool) {
        let started_at = std::time::Instant::now();
        while !self.0.iter().all(&condition) {
            assert!(started_at.elapsed() < Duration::from_secs(120), "never: {description}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(super) fn url(&self) -> String {
        let nodes: Vec<String> = self.0.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        format!("redis://{}", nodes.join(","))
    }

    /// The index of the primary that holds the keys of the region `test`.
    pub(super) fn primary_of_test(&self) -> usize {
        let slot: u64 = self.0[0].query(&["CLUSTER", "KEYSLOT", "marline:{test}:lead"]);
        usize::try_from((slot / 5461).min(2)).unwrap()
    }
}
