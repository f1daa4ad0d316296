//! Options of `marline get` for requests and connections, named as in curl and wget.
//!
//! Arguments that may hold a secret (`-b`, `-x`, `-e`) have the type [`Secret`], which accepts any text. clap must not
//! validate them, because its error messages repeat a rejected value. They are validated in this file instead.

use std::fs::File;
use std::path::{Path, PathBuf};

use clap::Args;
use marline_download::{ConnectOptions, CookieFiles, IpVersion, Logins, netrc};
use marline_net::http::{ProxyRules, ProxySettings};
use url::Url;

use super::headers::check_field;
use super::input_list::read_bounded_bytes;
use crate::{CliError, Secret};

/// Options for requests and connections.
#[derive(Debug, Args)]
pub struct RequestArgs {
    /// Send this User-Agent.
    #[arg(short = 'A', long, value_name = "TEXT")]
    pub user_agent: Option<String>,
    /// Send this URL as Referer.
    #[arg(short = 'e', long, value_name = "URL")]
    pub referer: Option<Secret>,
    /// Send these cookies to the origin of the first URL, or load cookies from this file (no `=`); repeat for more.
    #[arg(short = 'b', long, value_name = "NAME=VALUE[; …]|FILE")]
    pub cookie: Vec<Secret>,
    /// Load cookies from FILE, in the format of Netscape, before the first request; repeat for more.
    #[arg(long, value_name = "FILE")]
    pub load_cookies: Vec<PathBuf>,
    /// Save all cookies to FILE at the end, also after a failure, in the format of Netscape.
    #[arg(long, value_name = "FILE")]
    pub save_cookies: Option<PathBuf>,
    /// Read logins of hosts from ~/.netrc, or from the file named by the variable NETRC.
    #[arg(short = 'n', long, conflicts_with = "netrc_file")]
    pub netrc: bool,
    /// Read logins from FILE, in the format of ~/.netrc.
    #[arg(long, value_name = "FILE")]
    pub netrc_file: Option<PathBuf>,
    /// Use this proxy over each link; '' for none [default: the variables http_proxy, https_proxy, all_proxy].
    #[arg(short = 'x', long, value_name = "[http|socks5|socks5h://]HOST[:PORT]")]
    pub proxy: Option<Secret>,
    /// Connect to these hosts, domains and networks without a proxy; `*` for all [default: the variable no_proxy].
    #[arg(long, value_name = "LIST")]
    pub noproxy: Option<String>,
    /// Use IPv4 only.
    #[arg(short = '4', long, conflicts_with = "ipv6")]
    pub ipv4: bool,
    /// Use IPv6 only.
    #[arg(short = '6', long)]
    pub ipv6: bool,
    /// Follow at most N redirects in a row.
    #[arg(long, default_value_t = 50, value_name = "N")]
    pub max_redirs: u32,
    /// Accepted for compatibility with curl, without effect: redirects are always followed.
    #[arg(short = 'L', long = "location")]
    pub follow_redirects: bool,
    /// Accepted for compatibility with curl, without effect: a status of 400 or more is always an error.
    #[arg(short = 'f', long)]
    pub fail: bool,
    /// Accepted for compatibility with curl, without effect: errors are always printed.
    #[arg(short = 'S', long)]
    pub show_error: bool,
    /// Accepted for compatibility with curl as `-C -`, without effect: downloads are always continued.
    #[arg(short = 'C', long, value_name = "-", allow_hyphen_values = true)]
    pub continue_at: Option<String>,
}

/// Value of an environment variable. Bytes that are not UTF-8 are replaced, as no proxy URL contains them.
pub(super) fn environment_variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

impl RequestArgs {
    /// Header fields of the options -A, -e and -b (only those with `NAME=VALUE`). Reads no file.
    ///
    /// # Errors
    /// A value contains a control character, or `-C` has an offset. (`-C` is checked here because this
    /// function runs before any file is read.)
    pub(super) fn headers(&self) -> Result<Vec<(String, String)>, CliError> {
        if let Some(offset) = self.continue_at.as_deref().filter(|offset| *offset != "-") {
            return Err(CliError::usage(format!(
                "-C {offset}: a download cannot start at an offset; without -C, or with `-C -`, it continues where it stopped"
            )));
        }
        let mut headers = Vec::new();
        if let Some(agent) = &self.user_agent {
            headers.push(check_field("-A", "User-Agent", agent)?);
        }
        if let Some(referer) = &self.referer {
            headers.push(check_field("-e", "Referer", referer.expose())?);
        }
        let cookies: Vec<&str> =
            self.cookie.iter().map(|text| text.expose()).filter(|text| text.contains('=')).collect();
        if !cookies.is_empty() {
            headers.push(check_field("-b", "Cookie", &cookies.join("; "))?);
        }
        Ok(headers)
    }

    /// Cookie files to load (those of -b first) and to save.
    pub(super) fn cookie_files(&self) -> CookieFiles {
        let cookie_paths =
            self.cookie.iter().map(|text| text.expose()).filter(|text| !text.contains('=') && !text.is_empty());
        let load = cookie_paths.map(PathBuf::from).chain(self.load_cookies.iter().cloned()).collect();
        CookieFiles { load, save: self.save_cookies.clone() }
    }

    /// Proxy rules and IP version for connections.
    pub(super) fn connect_options(&self) -> Result<ConnectOptions, CliError> {
        let settings = ProxySettings {
            proxy: self.proxy.as_ref().map(|proxy| proxy.expose().to_owned()),
            no_proxy: self.noproxy.clone(),
        };
        let proxies =
            ProxyRules::new(&settings, environment_variable).map_err(|error| CliError::usage(error.to_string()))?;
        let version = match (self.ipv4, self.ipv6) {
            (true, _) => Some(IpVersion::V4),
            (_, true) => Some(IpVersion::V6),
            _ => None,
        };
        Ok(ConnectOptions { proxies, ip_version: version })
    }

    /// Reads the logins of a netrc file. If the default file does not exist, there are none, and a line is added to
    /// `notes`, which are shown to the user.
    ///
    /// # Errors
    /// The file cannot be read or is not a netrc file, or a file named by `--netrc-file` does not exist.
    pub(super) fn logins(&self, notes: &mut Vec<String>) -> Result<Logins, CliError> {
        let (option, path) = match &self.netrc_file {
            Some(path) => ("--netrc-file", path.clone()),
            None if self.netrc => ("-n", default_netrc()?),
            None => return Ok(Logins::default()),
        };
        // The errors of the parser are not printed, since they may repeat a part of the file.
        let usage_error = |reason: &str| CliError::usage(format!("{option} {}: {reason}", path.display()));
        let contents = match File::open(&path).and_then(read_bounded_bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && self.netrc_file.is_none() => {
                notes.push(format!("-n: {} does not exist, so no logins are used", path.display()));
                return Ok(Logins::default());
            }
            result => result.map_err(|error| usage_error(&error.to_string()))?,
        };
        netrc::parse(&String::from_utf8_lossy(&contents)).ok_or_else(|| {
            usage_error("not a netrc file: expected lines `machine NAME login USER password PASSWORD`")
        })
    }
}

/// The file named by the variable `NETRC`, else `.netrc` in the home directory.
fn default_netrc() -> Result<PathBuf, CliError> {
    if let Some(path) = std::env::var_os("NETRC").filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    let home = std::env::var_os("HOME")
        .ok_or_else(|| CliError::usage("-n: HOME is not set; name a file with --netrc-file"))?;
    Ok(Path::new(&home).join(".netrc"))
}

/// The `default` login of a netrc file, for a URL that the user has named; `None` if the file has an entry for its host.
/// Entries of hosts are applied with each request, also after a redirect. The `default` login is applied only to URLs of
/// the user, so that a redirect does not send it to an unknown host.
pub(super) fn default_login(logins: &Logins, url: &Url) -> Option<(String, String)> {
    let host = url.host_str().unwrap_or_default();
    logins.default.clone().filter(|_| !logins.hosts.contains_key(host))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_default_login_applies_to_hosts_without_an_entry_in_the_netrc_file() {
        let login = |name: &str| (name.to_owned(), String::new());
        let logins =
            Logins { hosts: BTreeMap::from([("a.example".to_owned(), login("me"))]), default: Some(login("any")) };
        let default = |url: &str| default_login(&logins, &url.parse().unwrap());
        assert_eq!(default("http://c.example/"), Some(login("any")));
        assert_eq!(default("http://a.example/"), None);
    }
}
