//! Rules of iptables-legacy: they are in tables of their own in the kernel, which nft does not list, so they are not checked. Whether there
//! are such tables is known: the kernel makes one when a program first asks for it.

use std::io;
use std::path::Path;

/// A line for each version of IP that has such tables.
pub(super) fn unchecked() -> Vec<String> {
    let of = |(names, module, program): (&str, &str, &str)| {
        // Of the thread's network: a process may have threads in several.
        let names = std::fs::read_to_string(Path::new("/proc/thread-self/net").join(names));
        line(names, Path::new("/sys/module").join(module).exists(), program)
    };
    let each = [
        ("ip_tables_names", "iptable_filter", "iptables-legacy"),
        ("ip6_tables_names", "ip6table_filter", "ip6tables-legacy"),
    ];
    each.into_iter().filter_map(of).collect()
}

/// `names` is the list of tables, which only root may read; `is_loaded`: the kernel's module for filters is.
fn line(names: io::Result<String>, is_loaded: bool, program: &str) -> Option<String> {
    match names {
        Ok(names) => {
            let tables: Vec<&str> = names.split_whitespace().collect();
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
        let of = |names: &str| line(Ok(names.to_owned()), true, "iptables-legacy");
        assert_eq!(of(""), None);
        let loaded = of("nat\nfilter\n").unwrap();
        assert!(
            loaded.starts_with("not checked: iptables-legacy rules are loaded (tables: nat, filter)"),
            "{loaded}"
        );
        let denied = |is_loaded| line(Err(io::ErrorKind::PermissionDenied.into()), is_loaded, "ip6tables-legacy");
        assert!(denied(true).is_some_and(|line| line.contains("may be loaded")));
        assert_eq!(denied(false), None);
        assert_eq!(line(Err(io::ErrorKind::NotFound.into()), true, "iptables-legacy"), None);
    }
}
