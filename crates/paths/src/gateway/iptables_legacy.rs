//! Detects rules of iptables-legacy. They are in separate tables of the kernel, which nft does not list, so they
//! cannot be checked. Their existence is known: the kernel creates such a table when a program first uses it.

use std::io;
use std::path::Path;

/// One line for each IP version with such tables.
pub(super) fn unchecked_notices() -> Vec<String> {
    let notice_of = |(table_names, module, program): (&str, &str, &str)| {
        // Of the thread's network namespace: threads of a process may be in several.
        let table_names = std::fs::read_to_string(Path::new("/proc/thread-self/net").join(table_names));
        notice(table_names, Path::new("/sys/module").join(module).exists(), program)
    };
    let versions = [
        ("ip_tables_names", "iptable_filter", "iptables-legacy"),
        ("ip6_tables_names", "ip6table_filter", "ip6tables-legacy"),
    ];
    versions.into_iter().filter_map(notice_of).collect()
}

/// `table_names` is the list of tables, which only root may read; `is_loaded`: the kernel module for filters is
/// loaded.
fn notice(table_names: io::Result<String>, is_loaded: bool, program: &str) -> Option<String> {
    match table_names {
        Ok(table_names) => {
            let tables: Vec<&str> = table_names.split_whitespace().collect();
            (!tables.is_empty()).then(|| {
                let tables = tables.join(", ");
                format!(
                    "not checked: {program} rules are loaded (tables: {tables}), and nft does not list them; `{program} -S FORWARD; \
                     {program} -S INPUT` shows whether they drop LAN traffic"
                )
            })
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && is_loaded => Some(format!(
            "not checked: {program} rules may be loaded, which only root can see; `{program} -S FORWARD; {program} -S INPUT` shows \
             whether they drop LAN traffic"
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
