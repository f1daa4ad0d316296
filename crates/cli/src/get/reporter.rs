//! Output of `marline get`: progress and messages for people, a JSON object per file for programs, and the exit code.

use marline_download::{
    BatchObserver, BatchProgress, DownloadError, DownloadErrorKind, DownloadObserver as _, FailureReport,
    FileResult, Report, SCHEMA,
};
use marline_net::printable::mask_secrets;
use serde::Serialize;

use super::ignored_proxy::IgnoredProxy;
use crate::progress::Viewer;
use crate::{CliError, energy, output};

/// Observer of a batch that prints its progress and results.
pub(super) struct DownloadReporter {
    viewer: Viewer,
    /// Print a JSON object for each file.
    json: bool,
    /// Standard output carries the file itself.
    to_stdout: bool,
    /// Print the radio energy of each file.
    shows_energy: bool,
    ignored_proxy: IgnoredProxy,
    /// Number of files of the command.
    files: usize,
    /// Number of files that are complete.
    completed: usize,
    /// The most severe failure so far (the last one in the order of [`DownloadErrorKind`]): its kind and exit code.
    worst: Option<(DownloadErrorKind, u8)>,
    /// Message of the failure, if there is only one file.
    message: Option<String>,
    /// First error of a write to standard output.
    output_error: Option<CliError>,
}

impl DownloadReporter {
    pub(super) fn new(
        viewer: Viewer,
        files: usize,
        json: bool,
        to_stdout: bool,
        shows_energy: bool,
        ignored_proxy: IgnoredProxy,
    ) -> Self {
        Self {
            viewer,
            json,
            to_stdout,
            shows_energy,
            ignored_proxy,
            files,
            completed: 0,
            worst: None,
            message: None,
            output_error: None,
        }
    }

    /// Removes the progress bars from the screen.
    pub(super) fn clear(&mut self) {
        self.viewer.clear();
    }

    /// Records that no download could start.
    pub(super) fn on_start_failed(&mut self, urls: &[String], error: &DownloadError) {
        for url in urls {
            self.print_json(&self.failure_json(url, error));
        }
        self.record_failure(error);
        self.message = Some(self.failure_message(urls.first().map_or("", String::as_str), error));
    }

    /// Records a failure at the end that belongs to no single file.
    pub(super) fn on_late_failure(&mut self, error: &DownloadError) {
        self.viewer.clear();
        match self.worst {
            None => self.message = Some(self.failure_message("", error)),
            Some(_) => output::print_notice(&self.failure_message("", error)),
        }
        self.record_failure(error);
    }

    /// Returns the result of the command.
    pub(super) fn finish(mut self) -> Result<(), CliError> {
        self.viewer.clear();
        if let Some(output_error) = self.output_error {
            return Err(output_error);
        }
        let Some((kind, code)) = self.worst else { return Ok(()) };
        let line = match self.message {
            Some(line) => line,
            None if kind == DownloadErrorKind::Interrupted => {
                format!(
                    "stopped; {} of {} files are complete; run the same command again to resume",
                    self.completed, self.files
                )
            }
            None => format!("{} of {} files could not be downloaded", self.files - self.completed, self.files),
        };
        Err(CliError::new(code, line))
    }

    fn record_failure(&mut self, error: &DownloadError) {
        let failure = (error.kind(), error.exit_code());
        self.worst = Some(self.worst.map_or(failure, |worst| worst.max(failure)));
    }

    fn on_completed(&mut self, report: &Report) {
        self.completed += 1;
        self.viewer.summary(report);
        // Only printed if the user has named an energy model.
        if let Some(line) = self.shows_energy.then(|| energy::summary_line(report)).flatten() {
            self.viewer.on_message(&line);
        }
        // A signed URL carries its secret in the query.
        self.print_json(&Report { url: mask_secrets(&report.url), ..report.clone() });
    }

    /// Error message without secrets, with a hint at a possible cause.
    fn failure_message(&self, url: &str, error: &DownloadError) -> String {
        mask_secrets(&error.to_string()) + self.ignored_proxy.hint(error.kind(), url)
    }

    fn failure_json(&self, url: &str, error: &DownloadError) -> FailureReport {
        FailureReport {
            schema: SCHEMA,
            url: mask_secrets(url),
            error: self.failure_message(url, error),
            kind: error.kind(),
            exit_code: error.exit_code(),
        }
    }

    /// Prints an object on one line, if JSON output is on.
    fn print_json(&mut self, value: &impl Serialize) {
        if !self.json {
            return;
        }
        let result = serde_json::to_string(value)
            .map_err(|error| CliError::failed(format!("cannot write the report as JSON: {error}")))
            .and_then(|text| {
                let line = format!("{text}\n");
                if self.to_stdout { output::eprint_result(&line) } else { output::print_result(&line) }
            });
        if let Err(exit) = result {
            self.output_error.get_or_insert(exit);
        }
    }
}

/// Prints the JSON object of a file whose download could not start.
pub(super) fn print_failed(url: &str, error: &str, kind: DownloadErrorKind, exit_code: u8) -> Result<(), CliError> {
    let failed = FailureReport { schema: SCHEMA, url: url.to_owned(), error: error.to_owned(), kind, exit_code };
    let text = serde_json::to_string(&failed)
        .map_err(|error| CliError::failed(format!("cannot write the report as JSON: {error}")))?;
    output::print_result(&format!("{text}\n"))
}

impl BatchObserver for DownloadReporter {
    fn on_progress(&mut self, overview: &BatchProgress) {
        self.viewer.overview(overview);
    }

    fn on_message(&mut self, file: Option<&str>, text: &str) {
        match file {
            Some(file) => self.viewer.on_message(&format!("{file}: {text}")),
            None => self.viewer.on_message(text),
        }
    }

    fn on_file_ended(&mut self, ended: FileResult) {
        let error = match &ended.result {
            Ok(report) => return self.on_completed(report),
            Err(error) => error,
        };
        self.record_failure(error);
        self.print_json(&self.failure_json(&ended.url, error));
        let line = self.failure_message(&ended.url, error);
        if self.files == 1 {
            self.message = Some(line);
        } else if !matches!(error.kind(), DownloadErrorKind::Interrupted) {
            // An interruption ends all files and is reported once, in `finish`.
            self.viewer.clear();
            output::print_notice(&line);
        }
    }
}
