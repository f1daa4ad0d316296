//! Parser of header fields and logins from options. Errors never repeat a value, since it may be a secret.

use std::path::Path;

use marline_net::private_file::read_secret;

use crate::CliError;

/// Parses `Name: value` (RFC 9110 section 5).
pub(crate) fn parse_header(text: &str) -> Result<(String, String), CliError> {
    let Some((name, value)) = text.split_once(':') else {
        return Err(CliError::usage("-H: a header field is written `Name: value`"));
    };
    let name = name.trim();
    let is_token_char = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if name.is_empty() || !name.chars().all(is_token_char) {
        return Err(CliError::usage("-H: the text before `:` is not the name of a header field"));
    }
    if OWN_FIELDS.iter().any(|own_field| name.eq_ignore_ascii_case(own_field)) {
        return Err(CliError::usage(format!("-H {name}: marline sets this field itself")));
    }
    check_field(&format!("-H {name}"), name, value)
}

/// Checks the value of a header field whose name is valid. `source` names the option in errors.
pub(super) fn check_field(source: &str, name: &str, value: &str) -> Result<(String, String), CliError> {
    if value.chars().any(|c| c.is_control() && c != '\t') {
        return Err(CliError::usage(format!("{source}: the value contains a control character")));
    }
    Ok((name.to_owned(), value.trim().to_owned()))
}

/// Parses `USER:PASS`. `source` names the option or variable in errors.
pub(super) fn parse_user(text: &str, source: &str) -> Result<(String, String), CliError> {
    let (user, password) =
        text.split_once(':').ok_or_else(|| CliError::usage(format!("{source}: write USER:PASS, with a colon")))?;
    if text.chars().any(char::is_control) {
        return Err(CliError::usage(format!("{source}: user and password must not contain control characters")));
    }
    Ok((user.to_owned(), password.to_owned()))
}

/// Reads `USER:PASS` from the first line of the file of `--user-file`.
pub(super) fn read_user(path: &Path) -> Result<(String, String), CliError> {
    let bytes = read_secret(path).map_err(|error| CliError::usage(format!("{error}: cannot use --user-file")))?;
    let text = String::from_utf8(bytes)
        .map_err(|_| CliError::usage(format!("{}: not a text file: cannot use --user-file", path.display())))?;
    parse_user(text.lines().next().unwrap_or_default(), &format!("--user-file {}", path.display()))
}

/// Fields that frame messages or select ranges. A value from the user would corrupt the file.
const OWN_FIELDS: [&str; 14] = [
    "Accept-Encoding",
    "Connection",
    "Content-Length",
    "Expect",
    "Host",
    "If-Match",
    "If-Modified-Since",
    "If-None-Match",
    "If-Range",
    "If-Unmodified-Since",
    "Range",
    "TE",
    "Transfer-Encoding",
    "Upgrade",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::get::tests::usage_message;

    #[test]
    fn header_fields_that_frame_messages_are_rejected() {
        assert_eq!(parse_header("X-Token:  abc ").unwrap(), ("X-Token".into(), "abc".into()));
        assert!(usage_message(parse_header("range: bytes=0-1")).contains("sets this field itself"));
        for bad in ["Authorization secret", "A b: secret", "A: secret\r\nB: c", ": secret", "A: secret\0"] {
            assert!(!usage_message(parse_header(bad)).contains("secret"));
        }
    }

    #[test]
    fn a_login_without_a_colon_is_rejected_without_repeating_it() {
        assert_eq!(parse_user("me:a:b", "--user").unwrap(), ("me".into(), "a:b".into()));
        assert_eq!(usage_message(parse_user("secret", "--user")), "--user: write USER:PASS, with a colon");
    }
}
