//! Parser for logins in the format of `~/.netrc`, as ftp(1), curl and wget read it.
//!
//! A file consists of words separated by white space, with keywords in any case. `machine NAME` or `default` begins
//! an entry; `login`, `password` and `account` belong to it; `macdef` begins a macro that ends at an empty line.
//! Other words are skipped, as in curl. `#` at the start of a word begins a comment. A word may be in double
//! quotes, in which a backslash escapes the next character.
//!
//! The crate rust-netrc was rejected: it expands environment variables, and needs a crate under another license for
//! that.

use super::Logins;

/// Returns the logins of a file; none if the file has text but no entry. If a host has several entries, the first
/// one with a password is used, otherwise the first one.
pub fn parse(text: &str) -> Option<Logins> {
    let mut logins = Logins::default();
    let mut entry: Option<NetrcEntry> = None;
    let mut tokens = Tokens { remaining: text.trim_start_matches('\u{feff}') };
    let mut is_netrc = tokens.remaining.trim().is_empty();
    while let Some(token) = tokens.next_token() {
        let token = token.to_ascii_lowercase();
        match (token.as_str(), &mut entry) {
            ("machine" | "default", _) => {
                is_netrc = true;
                entry.take().into_iter().for_each(|entry| entry.insert_into(&mut logins));
                let host = if token == "machine" { Some(host_of(&tokens.next_token()?)) } else { None };
                entry = Some(NetrcEntry { host, ..NetrcEntry::default() });
            }
            ("login", Some(entry)) => entry.login = Some(tokens.next_token()?),
            ("password", Some(entry)) => entry.password = Some(tokens.next_token()?),
            ("account", Some(_)) => drop(tokens.next_token()?),
            ("macdef", _) => tokens.skip_macro(),
            _ => {}
        }
    }
    entry.into_iter().for_each(|entry| entry.insert_into(&mut logins));
    is_netrc.then_some(logins)
}

/// A host in the form that URLs use: lower case, IPv6 addresses in brackets, international names in ASCII (RFC
/// 5891).
fn host_of(text: &str) -> String {
    if let Ok(address) = text.parse::<std::net::Ipv6Addr>() {
        return format!("[{address}]");
    }
    url::Host::parse(text).map_or_else(|_| text.to_ascii_lowercase(), |host| host.to_string())
}

/// The entry that is being parsed.
#[derive(Default)]
struct NetrcEntry {
    /// Host name; none: the `default` entry.
    host: Option<String>,
    login: Option<String>,
    password: Option<String>,
}

impl NetrcEntry {
    fn insert_into(self, logins: &mut Logins) {
        let Some(login) = self.login else { return };
        let has_password = self.password.is_some();
        let credentials = (login, self.password.unwrap_or_default());
        let stored = match self.host {
            Some(host) => logins.hosts.entry(host).or_insert_with(|| credentials.clone()),
            None => logins.default.get_or_insert_with(|| credentials.clone()),
        };
        if has_password && stored.1.is_empty() {
            *stored = credentials;
        }
    }
}

/// Iterates over the words of a file.
struct Tokens<'a> {
    remaining: &'a str,
}

impl Tokens<'_> {
    fn next_token(&mut self) -> Option<String> {
        loop {
            self.remaining = self.remaining.trim_start();
            if !self.remaining.starts_with('#') {
                break;
            }
            self.remaining = self.remaining.split_once('\n').map_or("", |(_, remaining)| remaining);
        }
        let mut chars = self.remaining.char_indices().peekable();
        let is_quoted = chars.next_if(|(_, c)| *c == '"').is_some();
        let (mut token, mut is_escaped) = (String::new(), false);
        for (at, c) in chars {
            let is_end = if is_quoted { c == '"' } else { c.is_whitespace() };
            if is_end && !is_escaped {
                self.remaining = self.remaining.get(at + c.len_utf8()..).unwrap_or_default();
                return Some(token);
            }
            is_escaped = is_quoted && c == '\\' && !is_escaped;
            if !is_escaped {
                token.push(c);
            }
        }
        self.remaining = "";
        // A quoted word without a closing quote is invalid.
        (!token.is_empty() && !is_quoted).then_some(token)
    }

    fn skip_macro(&mut self) {
        let end =
            self.remaining.find("\n\n").map(|at| at + 2).or_else(|| self.remaining.find("\n\r\n").map(|at| at + 3));
        self.remaining = end.and_then(|end| self.remaining.get(end..)).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_are_parsed_by_host() {
        let text = "# comment\nmachine a.example\n login me\n password \"s 3\\\"\" # more\nmacdef init\nmachine evil\n\n\
                    machine B.example login x account y password z\nmachine c.example password only\n\
                    machine a.example login second password second\ndefault login anonymous password guest";
        let logins = parse(text).unwrap();
        let login_of =
            |host: &str| logins.hosts.get(host).map(|(login, password)| (login.as_str(), password.as_str()));
        assert_eq!(login_of("a.example"), Some(("me", "s 3\"")));
        assert_eq!(login_of("b.example"), Some(("x", "z")));
        assert_eq!((login_of("c.example"), login_of("evil")), (None, None));
        assert_eq!(logins.default, Some(("anonymous".into(), "guest".into())));
        assert!(parse("").unwrap().hosts.is_empty() && parse(" \n").unwrap().hosts.is_empty());
        assert_eq!(parse("machine h login x").unwrap().hosts["h"], ("x".into(), String::new()));
    }

    #[test]
    fn files_that_curl_accepts_are_accepted() {
        for text in [
            "machine h port 80 login me password pw",
            "machine h protocol http login me password pw",
            "MACHINE H LOGIN me PASSWORD pw",
            "some words of another program\nmachine h login me password pw",
            "machine h user z login me password pw",
            "\u{feff}machine h login me password pw",
            "machine h login other\nmachine h login me password pw",
        ] {
            assert_eq!(parse(text).unwrap().hosts["h"], ("me".into(), "pw".into()), "{text}");
        }
        for (name, host) in
            [("::1", "[::1]"), ("2001:DB8:0::1", "[2001:db8::1]"), ("bücher.example", "xn--bcher-kva.example")]
        {
            let text = format!("machine {name} login me password pw");
            assert!(parse(&text).unwrap().hosts.contains_key(host), "{name}");
        }
    }

    #[test]
    fn files_in_another_format_are_rejected() {
        for text in ["secret", "login x", "machine", "machine h login", "machine h login \"x", "{\"a\":1}"] {
            assert!(parse(text).is_none(), "{text}");
        }
    }
}
