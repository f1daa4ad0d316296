//! Checks the documents against the programs and the committed results.
//!
//! 1. Each `marline …` and `marline-lab …` in the READMEs and in `docs/` (code spans and code blocks) names a
//!    subcommand and options that exist.
//! 2. Each file under `evidence/` is described in `evidence/README.md`, and the documents name no other.
//! 3. Each test that `docs/threat-model.md` and `docs/link-failures.md` name exists.
//! 4. The figures of eMPTCP's table in `docs/benchmarks.md` are the means of `evidence/emptcp/lab.jsonl`.
//! 5. No command in the documents writes to `/tmp`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory as _};
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Name and text of the README, of `evidence/README.md` and of each page in `docs/`.
fn pages() -> Vec<(String, String)> {
    let mut files = vec![root().join("README.md"), root().join("evidence/README.md")];
    files.extend(std::fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path()));
    files.retain(|file| file.extension().is_some_and(|extension| extension == "md"));
    let named = |file: PathBuf| (file.display().to_string(), std::fs::read_to_string(&file).unwrap());
    files.into_iter().map(named).collect()
}

/// The code of a page: its spans, and the lines of its blocks with continuation lines joined.
fn code(page: &str) -> Vec<String> {
    let mut all = Vec::new();
    for (at, part) in page.split("```").enumerate() {
        if at % 2 == 1 {
            all.extend(part.replace("\\\n", " ").lines().map(Into::into));
        } else {
            // A span may continue in the next line.
            let spans = part.split('`').skip(1).step_by(2);
            all.extend(spans.map(|span| span.replace('\n', " ")));
        }
    }
    all
}

/// The words after each occurrence of `program` in a piece of code, up to the end of that command. An occurrence
/// that is an argument of another command (`cargo test -p marline`) or in a comment does not count.
fn commands<'a>(code: &'a str, program: &str) -> Vec<Vec<&'a str>> {
    let ends = |token: &str| ["|", "||", "&&", "&", ";", ">", "2>", "--", "…"].contains(&token);
    let tokens: Vec<&str> = code.split_whitespace().take_while(|token| !token.starts_with('#')).collect();
    let begins = (0..tokens.len()).filter(|at| tokens[*at] == program && (*at == 0 || tokens[at - 1] != "-p"));
    begins.map(|at| tokens[at + 1..].iter().copied().take_while(|token| !ends(token)).collect()).collect()
}

fn has_subcommand<'a>(command: &'a Command, token: &str) -> Option<&'a Command> {
    command
        .get_subcommands()
        .find(|sub| sub.get_name() == token || sub.get_all_aliases().any(|alias| alias == token))
}

fn has_option(command: &Command, token: &str) -> bool {
    let name = token.split('=').next().unwrap_or_default();
    let is_option = |arg: &clap::Arg| match name.strip_prefix("--") {
        Some(long) => {
            arg.get_long() == Some(long) || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&long))
        }
        None => name.chars().nth(1).is_some_and(|short| arg.get_short() == Some(short)),
    };
    command.get_arguments().any(is_option)
}

/// What is wrong with these words after the program's name; `None` if they are valid.
fn unknown(program: &Command, args: &[&str]) -> Option<String> {
    let (mut command, mut at_subcommand) = (program, true);
    for token in args {
        let token = token.trim_matches(|c| "[](),.:".contains(c));
        let is_placeholder = !token.is_empty() && token.chars().all(|c| c.is_ascii_uppercase());
        if at_subcommand && command.has_subcommands() && is_placeholder {
            return None;
        }
        if token.starts_with('-') && token.len() > 1 {
            // Alternatives are separated by a bar.
            let odd = token.split('|').find(|token| token.starts_with('-') && !has_option(command, token));
            if let Some(odd) = odd {
                return Some(format!("`{}` has no option {odd}", command.get_name()));
            }
        } else if let Some(sub) = has_subcommand(command, token).filter(|_| at_subcommand) {
            command = sub;
            continue;
        } else if at_subcommand
            && command.is_subcommand_required_set()
            && token.chars().all(|c| c.is_ascii_lowercase())
            && !token.is_empty()
        {
            return Some(format!("`{}` has no subcommand {token}", command.get_name()));
        }
        at_subcommand &= token.starts_with('-');
    }
    None
}

#[test]
fn commands_in_the_documents_exist() {
    let (mut program, mut lab) = (marline::Cli::command(), marline_lab::cli::Cli::command());
    program.build();
    lab.build();
    for (program, at_least) in [(&program, 200), (&lab, 80)] {
        let (mut seen, mut wrong) = (0, Vec::new());
        for (page, text) in pages() {
            for code in code(&text) {
                for args in commands(&code, program.get_name()) {
                    seen += 1;
                    wrong.extend(unknown(program, &args).map(|why| format!("{page}: {code}: {why}")));
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(seen > at_least, "{}: {seen}", program.get_name());
    }
    // Test the check itself.
    for (program, args, is_known) in [
        (&lab, &["reproduce", "bass", "[--sim]", "--congestion", "bbr"][..], true),
        (&lab, &["reproduce", "bass", "--sims"], false),
        (&lab, &["reproduced"], false),
        (&program, &["lab", "demo"], false),
        (&program, &["get", "-o", "-"], true),
        (&program, &["get", "--config", "FILE", "URL"], true),
    ] {
        assert_eq!(unknown(program, args).is_none(), is_known, "{args:?}");
    }
}

#[test]
fn tests_named_in_the_documents_exist() {
    let threats = std::fs::read_to_string(root().join("docs/threat-model.md")).unwrap();
    let (_, table) = threats.split_once("## Promises and the tests behind them").unwrap();
    let failures = std::fs::read_to_string(root().join("docs/link-failures.md")).unwrap();
    let mut sources = String::new();
    for file in
        files_below(&root().join("crates")).into_iter().filter(|file| file.extension().is_some_and(|e| e == "rs"))
    {
        sources += &std::fs::read_to_string(file).unwrap();
    }
    let mut count = 0;
    for row in table.lines().filter(|line| line.starts_with('|')) {
        let columns: Vec<&str> = row.split('|').collect();
        for span in columns[2].split('`').skip(1).step_by(2) {
            let path = root().join("crates").join(span);
            assert!(path.exists() || root().join(span).exists(), "{span}: {row}");
        }
        // Test names are sentences; file names contain a dot or a slash.
        for name in columns[3].split('`').skip(1).step_by(2).filter(|span| !span.contains(['.', '/'])) {
            assert!(sources.contains(&format!("fn {name}(")), "no test {name}: {row}");
            count += 1;
        }
    }
    for row in failures.lines().filter(|line| line.starts_with('|')) {
        for name in row.split('|').nth(4).unwrap().split('`').skip(1).step_by(2) {
            assert!(sources.contains(&format!("fn {name}(")), "no test {name}: {row}");
            count += 1;
        }
    }
    assert!(count > 120, "{count}");
}

#[test]
fn no_command_in_the_documents_writes_to_a_shared_directory() {
    for (name, page) in pages() {
        for piece in code(&page) {
            // Another user could create a file of that name in /tmp before the command runs.
            assert!(!piece.contains("/tmp/"), "{name}: {piece}");
        }
    }
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

#[test]
fn each_committed_result_is_described_and_the_documents_name_no_other() {
    let folder = root().join("evidence");
    let about = std::fs::read_to_string(folder.join("README.md")).unwrap();
    for file in files_below(&folder).iter().filter(|file| !file.ends_with("README.md")) {
        let name = file.strip_prefix(&folder).unwrap().display().to_string();
        assert!(about.contains(&format!("`{name}`")), "evidence/README.md does not say what {name} is");
    }
    for (page, text) in pages() {
        for code in code(&text).iter().filter(|code| code.starts_with("evidence/") && !code.contains("NAME")) {
            assert!(root().join(code).exists(), "{page}: {code} is not there");
        }
    }
}

/// Whether a printed number is the measured one, rounded to the printed digits: `35 s` for `35.49`.
fn is_rounded(printed: &str, measured: f64) -> bool {
    let digits = printed.split_once('.').map_or(0, |(_, digits)| digits.len());
    // Half of the last digit; exact halves may be rounded either way.
    (printed.parse::<f64>().unwrap() - measured).abs() <= 0.501 * 0.1_f64.powi(digits as i32)
}

#[test]
fn the_figures_of_emptcps_table_match_the_committed_results() {
    let records = std::fs::read_to_string(root().join("evidence/emptcp/lab.jsonl")).unwrap();
    // Seconds and joules of each repetition; the last measurement counts.
    let mut cells: BTreeMap<(String, String), BTreeMap<u64, (f64, f64)>> = BTreeMap::new();
    for line in records.lines() {
        let cell = serde_json::from_str::<Value>(line).unwrap()["cell"].take();
        let text = |key: &str| cell[key].as_str().unwrap_or_default().to_owned();
        let measured = &cell["measured"];
        if let (Some(seconds), Some(joules)) = (measured["seconds"].as_f64(), measured["energy_j"].as_f64())
            && text("congestion") == "cubic"
        {
            let key = (format!("{} {}", text("artefact"), text("case")), text("who"));
            cells.entry(key).or_default().insert(cell["run"].as_u64().unwrap(), (seconds, joules));
        }
    }
    let page = std::fs::read_to_string(root().join("docs/benchmarks.md")).unwrap();
    let table = page.split_once("| | TCP over Wi-Fi | MPTCP | eMPTCP | marline |\n").unwrap().1;
    let mut compared = 0;
    for line in table.lines().skip(1).take_while(|line| line.starts_with('|')) {
        let fields: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        for (client, field) in ["single:wifi", "mptcp", "emptcp-settled", "marline"].into_iter().zip(&fields[1..]) {
            let Some((seconds, joules)) = field.split_once(" s, ") else { continue };
            let runs = cells
                .get(&(fields[0].to_owned(), client.to_owned()))
                .unwrap_or_else(|| panic!("{}: no {client}", fields[0]));
            let mean = |metric: fn(&(f64, f64)) -> f64| runs.values().map(metric).sum::<f64>() / runs.len() as f64;
            let (took, drew) = (mean(|run| run.0), mean(|run| run.1));
            let joules = joules.trim_end_matches(" J");
            assert!(is_rounded(seconds, took), "{} {client}: {seconds} s, kept {took} s", fields[0]);
            assert!(is_rounded(joules, drew), "{} {client}: {joules} J, kept {drew} J", fields[0]);
            compared += 1;
        }
    }
    assert!(compared > 50, "{compared}");
}
