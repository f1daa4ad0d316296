//! What a person and a program see of the downloads: progress and lines, an object for each file, the exit code at the end.

use marline_download::{BatchWatcher, Ended, Failed, GetError, Kind, Overview, Report, SCHEMA, Watcher as _};
use marline_net::printable::mask;
use serde::Serialize;

use super::ignored_proxy;
use crate::progress::Viewer;
use crate::{Exit, energy, output};

/// Looks on while the downloads run.
pub(super) struct Board {
    viewer: Viewer,
    /// Print an object for each file.
    json: bool,
    /// Standard output carries the file itself.
    to_stdout: bool,
    /// Say what the radios would have drawn.
    joules: bool,
    files: usize,
    complete: usize,
    /// The worst failure, and its line if there is one file.
    worst: Option<(Kind, u8)>,
    line: Option<String>,
    /// Standard output cannot be written.
    lost: Option<Exit>,
}

impl Board {
    pub(super) fn new(viewer: Viewer, files: usize, json: bool, to_stdout: bool, joules: bool) -> Self {
        Self { viewer, json, to_stdout, joules, files, complete: 0, worst: None, line: None, lost: None }
    }

    pub(super) fn clear(&mut self) {
        self.viewer.clear();
    }

    /// Nothing could be begun.
    pub(super) fn cannot_begin(&mut self, urls: &[String], error: &GetError) {
        for url in urls {
            self.print(&failed(url, error));
        }
        self.note(error);
        self.line = Some(words(urls.first().map_or("", String::as_str), error));
    }

    /// What is not of one file failed at the end.
    pub(super) fn also_failed(&mut self, error: &GetError) {
        self.viewer.clear();
        match self.worst {
            None => self.line = Some(words("", error)),
            Some(_) => output::say(&words("", error)),
        }
        self.note(error);
    }

    /// How the command ends.
    pub(super) fn end(mut self) -> Result<(), Exit> {
        self.viewer.clear();
        if let Some(lost) = self.lost {
            return Err(lost);
        }
        let Some((kind, code)) = self.worst else { return Ok(()) };
        let line = match self.line {
            Some(line) => line,
            None if kind == Kind::Interrupted => {
                format!(
                    "stopped; {} of {} files are complete; run the same command again to go on",
                    self.complete, self.files
                )
            }
            None => format!("{} of {} files could not be had", self.files - self.complete, self.files),
        };
        Err(Exit::new(code, line))
    }

    fn note(&mut self, error: &GetError) {
        let now = (error.kind(), error.exit_code());
        self.worst = Some(self.worst.map_or(now, |worst| worst.max(now)));
    }

    fn completed(&mut self, report: &Report) {
        self.complete += 1;
        self.viewer.summary(report);
        // Who names a device wants to know.
        if let Some(line) = self.joules.then(|| energy::line(report)).flatten() {
            self.viewer.line(&line);
        }
        // A signed URL carries its secret in the query.
        self.print(&Report { url: mask(&report.url), ..report.clone() });
    }

    /// An object and a line end.
    fn print(&mut self, value: &impl Serialize) {
        if !self.json {
            return;
        }
        let printed = serde_json::to_string(value)
            .map_err(|error| Exit::failed(format!("the report cannot be written as JSON: {error}")))
            .and_then(|text| {
                let line = format!("{text}\n");
                if self.to_stdout { output::print_beside(&line) } else { output::print(&line) }
            });
        if let Err(exit) = printed {
            self.lost.get_or_insert(exit);
        }
    }
}

/// Prints the object of a file of which nothing could be begun.
pub(super) fn print_failed(url: &str, error: &str, kind: Kind, exit_code: u8) -> Result<(), Exit> {
    let failed = Failed { schema: SCHEMA, url: url.to_owned(), error: error.to_owned(), kind, exit_code };
    let text = serde_json::to_string(&failed)
        .map_err(|error| Exit::failed(format!("the report cannot be written as JSON: {error}")))?;
    output::print(&format!("{text}\n"))
}

/// What went wrong, without secrets, and what might be the cause.
fn words(url: &str, error: &GetError) -> String {
    let variable = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    mask(&error.to_string()) + ignored_proxy::hint(error.kind(), url, variable)
}

fn failed(url: &str, error: &GetError) -> Failed {
    Failed {
        schema: SCHEMA,
        url: mask(url),
        error: words(url, error),
        kind: error.kind(),
        exit_code: error.exit_code(),
    }
}

impl BatchWatcher for Board {
    fn progress(&mut self, overview: &Overview) {
        self.viewer.overview(overview);
    }

    fn line(&mut self, file: Option<&str>, text: &str) {
        match file {
            Some(file) => self.viewer.line(&format!("{file}: {text}")),
            None => self.viewer.line(text),
        }
    }

    fn ended(&mut self, ended: Ended) {
        let error = match &ended.result {
            Ok(report) => return self.completed(report),
            Err(error) => error,
        };
        self.note(error);
        self.print(&failed(&ended.url, error));
        let line = words(&ended.url, error);
        if self.files == 1 {
            self.line = Some(line);
        } else if !matches!(error.kind(), Kind::Interrupted) {
            // What ends all of them is said once, at the end.
            self.viewer.clear();
            output::say(&line);
        }
    }
}
