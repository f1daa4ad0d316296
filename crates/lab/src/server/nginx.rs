//! Configuration of nginx: one process in the foreground that serves one directory over HTTP, HTTPS and HTTP/2.
//!
//! Port 444 offers only HTTP/1.1 over TLS, for comparisons.
//!
//! There is one process instead of a master with workers: in a user namespace there are no privileges to hand over,
//! and only one PID has to be ended. For the same reason its user is root, the only user that exists in a user
//! namespace.

use std::fs;
use std::io;
use std::path::Path;

use super::certificate::ServerCertificate;

/// Writes `nginx.conf` into `directory`, to serve `root`. With `has_passed_sockets` nginx needs a master process:
/// as a single process, nginx 1.22 takes passed sockets for those of an event loop that it never had, and exits.
pub(super) fn write_config(
    directory: &Path,
    root: &Path,
    certificate: &ServerCertificate,
    has_passed_sockets: bool,
) -> io::Result<()> {
    let root = nginx_quoted(root)?;
    let (pid, log) = (nginx_quoted(&directory.join("nginx.pid"))?, nginx_quoted(&directory.join("error.log"))?);
    let v6 =
        if Path::new("/proc/net/if_inet6").exists() { "listen [::]:80; listen [::]:443 ssl http2;" } else { "" };
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| Ok(format!("    {kind}_temp_path {};\n", nginx_quoted(&directory.join(kind))?)))
        .collect::<io::Result<_>>()?;
    let master = if has_passed_sockets { "on" } else { "off" };
    // Thousands of MPTCP connections may stay open as long as the lab runs.
    let (most, keepalive) = if has_passed_sockets { (16_384, "3600s") } else { (4096, "75s") };
    let text = format!(
        "user root root;\n\
         daemon off;\n\
         master_process {master};\n\
         pid {pid};\n\
         error_log {log};\n\
         events {{ worker_connections {most}; }}\n\
         http {{\n\
         {temporary}\
         \x20   access_log off;\n\
         \x20   default_type application/octet-stream;\n\
         \x20   sendfile on;\n\
         \x20   tcp_nopush on;\n\
         \x20   keepalive_requests 1000000;\n\
         \x20   keepalive_timeout {keepalive};\n\
         \x20   server {{\n\
         \x20       listen 80; listen 443 ssl http2; listen 444 ssl; {v6}\n\
         \x20       ssl_certificate {};\n\
         \x20       ssl_certificate_key {};\n\
         \x20       ssl_protocols TLSv1.2 TLSv1.3;\n\
         \x20       ssl_session_cache shared:lab:1m;\n\
         \x20       root {root};\n\
         \x20       autoindex on;\n\
         \x20   }}\n\
         }}\n",
        nginx_quoted(&certificate.cert_file)?,
        nginx_quoted(&certificate.key_file)?,
    );
    fs::write(directory.join("nginx.conf"), text)
}

/// A path in the syntax of nginx's configuration.
fn nginx_quoted(path: &Path) -> io::Result<String> {
    match path.to_str() {
        Some(text) if !text.contains(['"', '\\', '$', '\n']) => Ok(format!("\"{text}\"")),
        _ => Err(io::Error::other(format!("{}: nginx's configuration cannot contain such a name", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_blanks_are_quoted_and_paths_with_quotes_are_refused() {
        assert_eq!(nginx_quoted(Path::new("/a b/c")).unwrap(), "\"/a b/c\"");
        assert!(nginx_quoted(Path::new("/a\"b")).is_err());
        assert!(nginx_quoted(Path::new("/a$b")).is_err());
    }
}
