//! Logins in the format of `~/.netrc`, as ftp(1), curl and wget read it.
//!
//! Words with blanks between them, in any case: `machine NAME` or `default` begins an entry, `login`, `password` and `account`
//! belong to it, and `macdef` begins a macro that ends at an empty line. Other words are skipped, as curl does. `#` begins a
//! comment at the start of a word. A word may stand in double quotes, in which a backslash takes the next character as it is. The
//! crate rust-netrc was not used: it expands variables of the environment, and brings a crate under another licence for that.

use super::Logins;

/// The logins of a file. None if it has text and no entry. Of several entries for a host the first one with a password counts, else
/// the first one.
pub fn read(text: &str) -> Option<Logins> {
    let mut logins = Logins::default();
    let mut entry: Option<Entry> = None;
    let mut words = Words { rest: text.trim_start_matches('\u{feff}') };
    let mut is_netrc = words.rest.trim().is_empty();
    while let Some(word) = words.next() {
        let word = word.to_ascii_lowercase();
        match (word.as_str(), &mut entry) {
            ("machine" | "default", _) => {
                is_netrc = true;
                entry.take().into_iter().for_each(|entry| entry.add_to(&mut logins));
                let host = if word == "machine" { Some(host_of(&words.next()?)) } else { None };
                entry = Some(Entry { host, ..Entry::default() });
            }
            ("login", Some(entry)) => entry.login = Some(words.next()?),
            ("password", Some(entry)) => entry.password = Some(words.next()?),
            ("account", Some(_)) => drop(words.next()?),
            ("macdef", _) => words.skip_macro(),
            _ => {}
        }
    }
    entry.into_iter().for_each(|entry| entry.add_to(&mut logins));
    is_netrc.then_some(logins)
}

/// A host as URLs have it: in small letters, an IPv6 address in brackets, a name with other letters in ASCII (RFC 5891).
fn host_of(text: &str) -> String {
    if let Ok(address) = text.parse::<std::net::Ipv6Addr>() {
        return format!("[{address}]");
    }
    url::Host::parse(text).map_or_else(|_| text.to_ascii_lowercase(), |host| host.to_string())
}

/// An entry that is being read.
#[derive(Default)]
struct Entry {
    /// None: the default.
    host: Option<String>,
    login: Option<String>,
    password: Option<String>,
}

impl Entry {
    fn add_to(self, logins: &mut Logins) {
        let Some(login) = self.login else { return };
        let has_password = self.password.is_some();
        let both = (login, self.password.unwrap_or_default());
        let known = match self.host {
            Some(host) => logins.hosts.entry(host).or_insert_with(|| both.clone()),
            None => logins.default.get_or_insert_with(|| both.clone()),
        };
        if has_password && known.1.is_empty() {
            *known = both;
        }
    }
}

/// The words of a file.
struct Words<'a> {
    rest: &'a str,
}

impl Words<'_> {
    fn next(&mut self) -> Option<String> {
        loop {
            self.rest = self.rest.trim_start();
            if !self.rest.starts_with('#') {
                break;
            }
            self.rest = self.rest.split_once('\n').map_or("", |(_, rest)| rest);
        }
        let mut chars = self.rest.char_indices().peekable();
        let is_quoted = chars.next_if(|(_, c)| *c == '"').is_some();
        let (mut word, mut is_escaped) = (String::new(), false);
        for (at, c) in chars {
            let is_end = if is_quoted { c == '"' } else { c.is_whitespace() };
            if is_end && !is_escaped {
                self.rest = self.rest.get(at + c.len_utf8()..).unwrap_or_default();
                return Some(word);
            }
            is_escaped = is_quoted && c == '\\' && !is_escaped;
            if !is_escaped {
                word.push(c);
            }
        }
        self.rest = "";
        // A quote without its end is no word.
        (!word.is_empty() && !is_quoted).then_some(word)
    }

    fn skip_macro(&mut self) {
        let end = self.rest.find("\n\n").map(|at| at + 2).or_else(|| self.rest.find("\n\r\n").map(|at| at + 3));
        self.rest = end.and_then(|end| self.rest.get(end..)).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_gives_logins_by_host() {
        let text = "# comment\nmachine a.example\n login me\n password \"s 3\\\"\" # more\nmacdef init\nmachine evil\n\n\
                    machine B.example login x account y password z\nmachine c.example password only\n\
                    machine a.example login second password second\ndefault login anonymous password guest";
        let logins = read(text).unwrap();
        let of = |host: &str| logins.hosts.get(host).map(|(login, password)| (login.as_str(), password.as_str()));
        assert_eq!(of("a.example"), Some(("me", "s 3\"")));
        assert_eq!(of("b.example"), Some(("x", "z")));
        assert_eq!((of("c.example"), of("evil")), (None, None));
        assert_eq!(logins.default, Some(("anonymous".into(), "guest".into())));
        assert!(read("").unwrap().hosts.is_empty() && read(" \n").unwrap().hosts.is_empty());
        assert_eq!(read("machine h login x").unwrap().hosts["h"], ("x".into(), String::new()));
    }

    #[test]
    fn what_curl_reads_is_read() {
        for text in [
            "machine h port 80 login me password pw",
            "machine h protocol http login me password pw",
            "MACHINE H LOGIN me PASSWORD pw",
            "some words of another program\nmachine h login me password pw",
            "machine h user z login me password pw",
            "\u{feff}machine h login me password pw",
            "machine h login other\nmachine h login me password pw",
        ] {
            assert_eq!(read(text).unwrap().hosts["h"], ("me".into(), "pw".into()), "{text}");
        }
        for (name, host) in
            [("::1", "[::1]"), ("2001:DB8:0::1", "[2001:db8::1]"), ("bücher.example", "xn--bcher-kva.example")]
        {
            let text = format!("machine {name} login me password pw");
            assert!(read(&text).unwrap().hosts.contains_key(host), "{name}");
        }
    }

    #[test]
    fn what_is_in_another_format_is_refused() {
        for text in ["secret", "login x", "machine", "machine h login", "machine h login \"x", "{\"a\":1}"] {
            assert!(read(text).is_none(), "{text}");
        }
    }
}
