//! Parses the location of a store, as given on the command line.
//!
//! It is a path, or `redis://[USER@]HOST[:PORT][,HOST[:PORT]…][/NUMBER]`, with `rediss` for TLS.
//!
//! 1. One node is a single server, several are nodes of one cluster.
//! 2. A password in the URL is rejected, because every user who lists processes could read it.

use std::fmt::{self, Display};
use std::path::PathBuf;
use std::str::FromStr;

use marline_net::http::host_and_port;

/// The location of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// Path of a database file.
    File(PathBuf),
    /// One Redis server or a cluster.
    Redis(RedisNodes),
}

/// Address of a Redis server or cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisNodes {
    /// Host and port of each node; several nodes are a cluster.
    pub nodes: Vec<(String, u16)>,
    /// Whether connections use TLS.
    pub tls: bool,
    /// User name; none: `default`.
    pub user: Option<String>,
    /// Number of the database; a cluster has only database 0.
    pub database: i64,
}

/// The default port of Redis.
const DEFAULT_PORT: u16 = 6379;

impl FromStr for StoreUrl {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (tls, remaining) = match text.split_once("://") {
            Some(("redis", remaining)) => (false, remaining),
            Some(("rediss", remaining)) => (true, remaining),
            Some((other, _)) => return Err(format!("`{other}://` is not a store: use a file, redis or rediss")),
            None if text.is_empty() => return Err("use a file, redis://HOST:PORT or rediss://HOST:PORT".to_owned()),
            None => return Ok(Self::File(text.into())),
        };
        let (user, remaining) = match remaining.rsplit_once('@') {
            Some((user, _)) if user.contains(':') => {
                return Err("a password in the URL can be read by everybody who lists processes: \
                            give it by --store-password-file or in MARLINE_STORE_PASSWORD"
                    .to_owned());
            }
            Some((user, remaining)) => (Some(user.to_owned()).filter(|user| !user.is_empty()), remaining),
            None => (None, remaining),
        };
        let (hosts, database) = match remaining.split_once('/') {
            Some((hosts, "")) => (hosts, 0),
            Some((hosts, number)) => {
                (hosts, number.parse().map_err(|_| format!("`/{number}` is not the number of a database"))?)
            }
            None => (remaining, 0),
        };
        let nodes: Vec<(String, u16)> = hosts.split(',').map(parse_node).collect::<Result<_, String>>()?;
        if nodes.len() > 1 && database != 0 {
            return Err(format!("`/{database}`: a cluster has only database 0"));
        }
        Ok(Self::Redis(RedisNodes { nodes, tls, user, database }))
    }
}

fn parse_node(text: &str) -> Result<(String, u16), String> {
    let wrong = || format!("`{text}` is not HOST:PORT of a Redis server");
    let (host, port) = match text.strip_prefix('[').and_then(|remaining| remaining.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, port)) => (host, Some(port.strip_prefix(':').ok_or_else(wrong)?)),
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = port.map_or(Ok(DEFAULT_PORT), |port| port.parse().map_err(|_| wrong()))?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:%".contains(&byte);
    if host.is_empty() || !host.bytes().all(plain) { Err(wrong()) } else { Ok((host.to_owned(), port)) }
}

impl Display for RedisNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<String> = self.nodes.iter().map(|(host, port)| host_and_port(host, *port)).collect();
        write!(f, "{}://{}", if self.tls { "rediss" } else { "redis" }, nodes.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_a_file_a_server_or_a_cluster() {
        let nodes = |text: &str| match text.parse::<StoreUrl>().unwrap() {
            StoreUrl::Redis(nodes) => nodes,
            StoreUrl::File(path) => panic!("{}", path.display()),
        };
        assert_eq!("/var/lib/x.redb".parse(), Ok(StoreUrl::File("/var/lib/x.redb".into())));
        let one = nodes("redis://fleet@db.example/3");
        assert_eq!(
            (one.nodes.as_slice(), one.database, one.tls),
            (&[("db.example".to_owned(), 6379)][..], 3, false)
        );
        assert_eq!((one.user.as_deref(), one.to_string().as_str()), (Some("fleet"), "redis://db.example:6379"));
        let three = nodes("rediss://10.0.0.1:7000,[2001:db8::1]:7001,c");
        assert_eq!(three.to_string(), "rediss://10.0.0.1:7000,[2001:db8::1]:7001,c:6379");
        assert!(three.tls);
    }

    #[test]
    fn errors_name_the_problem_and_never_the_password() {
        let message = |text: &str| text.parse::<StoreUrl>().unwrap_err();
        assert!(message("http://a").contains("is not a store"));
        assert!(message("redis://a:b").contains("HOST:PORT") && message("redis://").contains("HOST:PORT"));
        assert!(message("redis://a,b/1").contains("cluster") && message("redis://a/x").contains("database"));
        let secret = message("redis://:hunter2@a");
        assert!(secret.contains("--store-password-file") && !secret.contains("hunter2"), "{secret}");
    }
}
