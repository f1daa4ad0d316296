//! Rules of iptables-legacy: they are in tables of their own in the kernel, which nft does not list, so they are not checked. Whether there
//! are such tables is known: the kernel makes one when a program first asks for it.

use std::io;
use std::path::Path;

/// A line for each version of IP that has such tables.
pub(super) fn unchecked_notices() -> Vec<String> {
    let notice_of = |(table_names, module, program): (&str, &str, &str)| {
        // Of the thread's network: a process may have threads in several.
        let table_names = std::fs::read_to_string(Path::new("/proc/thread-self/net").join(table_names));
        notice(table_names, Path::new("/sys/module").join(module).exists(), program)
    };
    let versions = [
        ("ip_tables_names", "iptable_filter", "iptables-legacy"),
        ("ip6_tables_names", "ip6table_filter", "ip6tables-legacy"),
    ];
    versions.into_iter().filter_map(notice_of).collect()
}

/// `dns_routes` is the list of tables, which only root may read; `is_loaded`: the kernel's module for filters is.
fn notice(table_names: io::Result<String>, is_loaded: bool, program: &str) -> Option<String> {
    match table_names {
        Ok(table_names) => {
            let tables: Vec<&str> = table_names.split_whitespace().collect();
            (!tables.is_empty()).then(|| {
                let tables = tables.join(", ");
                format!(
                    "not checked: {program} rules are loaded (tables: {tables}), and nft does not list them; `{program} -S FORWARD; \
                     {program} -S INPUT` shows whether they stop the LAN"
                )
            })
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && is_loaded => Some(format!(
            "not checked: {program} rules may be loaded, which only root can tell; `{program} -S FORWARD; {program} -S INPUT` shows \
             whether they stop the LAN"
        )),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_that_nft_does_not_list_are_named() {
        let notice_of = |table_names: &str| notice(Ok(table_names.to_owned()), true, "iptables-legacy");
        assert_eq!(notice_of(""), None);
        let loaded = notice_of("nat\nfilter\n").unwrap();
        assert!(
            loaded.starts_with("not checked: iptables-legacy rules are loaded (tables: nat, filter)"),
            "{loaded}"
        );
        let notice_if_denied =
            |is_loaded| notice(Err(io::ErrorKind::PermissionDenied.into()), is_loaded, "ip6tables-legacy");
        assert!(notice_if_denied(true).is_some_and(|line| line.contains("may be loaded")));
        assert_eq!(notice_if_denied(false), None);
        assert_eq!(notice(Err(io::ErrorKind::NotFound.into()), true, "iptables-legacy"), None);
    }
}
