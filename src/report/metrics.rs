//! Metrics in the text format of OpenMetrics, which Prometheus and the textfile collector of node_exporter read as well.

use super::tally::{Tally, Traffic};
use crate::exit::Exit;
use std::fmt::{Display, Write as _};
use std::time::Duration;

/// Metrics that are being written. All names begin with `sparsync_`.
#[derive(Default)]
pub struct Metrics(String);

impl Metrics {
    /// Adds a value that can fall as well.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        // Writing to a string does not fail, here and below.
        let _ = writeln!(self.family(name, "gauge", help), "sparsync_{name} {value}");
    }

    /// Adds a value that only grows. Its sample has the suffix `_total`.
    pub fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        let _ = writeln!(
            self.family(name, "counter", help),
            "sparsync_{name}_total {value}"
        );
    }

    /// Adds the version of the program, as a label of a gauge that is always 1.
    pub fn version(&mut self, name: &str, version: &str) {
        // A version from another program is checked by escaping it.
        let version = version
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n");
        let family = self.family(name, "gauge", "The version of sparsync");
        let _ = writeln!(family, "sparsync_{name}{{version=\"{version}\"}} 1");
    }

    /// Returns the complete text.
    pub fn text(self) -> String {
        self.0 + "# EOF\n"
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) -> &mut String {
        let _ = writeln!(
            self.0,
            "# TYPE sparsync_{name} {kind}\n# HELP sparsync_{name} {help}."
        );
        &mut self.0
    }
}

/// The counts of a run that has ended.
#[derive(Debug, Clone)]
pub struct RunCounts {
    /// What the run did.
    pub tally: Tally,
    /// The bytes exchanged with the other end.
    pub traffic: Traffic,
}

/// Returns the metrics of a run. They are gauges, because the next run starts from 0. `counts`: `None` if the run ended
/// before it counted anything. `end`: seconds since 1970.
pub fn of_run(
    version: &str,
    exit: Exit,
    counts: Option<&RunCounts>,
    duration: Duration,
    end: i64,
) -> String {
    let mut metrics = Metrics::default();
    metrics.version("run_build_info", version);
    metrics.gauge(
        "run_exit_code",
        "The exit code of the last run",
        exit.code(),
    );
    metrics.gauge(
        "run_end_timestamp_seconds",
        "When the last run ended, in seconds since 1970",
        end,
    );
    metrics.gauge(
        "run_duration_seconds",
        "How long the last run took",
        duration.as_secs_f64(),
    );
    let Some(RunCounts { tally, traffic }) = counts else {
        return metrics.text();
    };
    let (copied_files, copied_bytes) = tally.copied();
    for (name, help, value) in [
        (
            "listed_entries",
            "Entries in the list of the source",
            tally.listed.total(),
        ),
        (
            "created_entries",
            "Entries that were created",
            tally.present().total(),
        ),
        (
            "deleted_entries",
            "Entries that were deleted",
            tally.deleted.total(),
        ),
        (
            "transferred_files",
            "Regular files whose data was transferred",
            copied_files,
        ),
        (
            "vanished_entries",
            "Source entries that vanished during the run",
            tally.vanished,
        ),
        ("errors", "Problems with single entries", tally.errors()),
        (
            "listed_bytes",
            "The total length of the listed files",
            tally.total_bytes,
        ),
        (
            "transferred_bytes",
            "The total length of the transferred files",
            copied_bytes,
        ),
        (
            "literal_bytes",
            "Bytes of data that came from the source",
            tally.literal_bytes,
        ),
        (
            "matched_bytes",
            "Bytes of data that the destination already had",
            tally.matched_bytes,
        ),
        (
            "sent_bytes",
            "Bytes sent to the other end",
            traffic.sent_bytes,
        ),
        (
            "received_bytes",
            "Bytes received from the other end",
            traffic.received_bytes,
        ),
    ] {
        metrics.gauge(&format!("run_{name}"), help, value);
    }
    metrics.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_a_type_and_a_help_line() {
        let mut metrics = Metrics::default();
        metrics.counter("x_bytes", "Bytes", 7);
        metrics.version("info", "1\"\\\n");
        assert_eq!(
            metrics.text(),
            "# TYPE sparsync_x_bytes counter\n# HELP sparsync_x_bytes Bytes.\nsparsync_x_bytes_total 7\n\
             # TYPE sparsync_info gauge\n# HELP sparsync_info The version of sparsync.\n\
             sparsync_info{version=\"1\\\"\\\\\\n\"} 1\n# EOF\n"
        );
    }

    #[test]
    fn run_that_failed_early_has_no_counts() {
        let text = of_run("1", Exit::Usage, None, Duration::from_millis(1500), 9);
        assert!(
            text.contains("\nsparsync_run_duration_seconds 1.5\n") && !text.contains("bytes"),
            "{text}"
        );
    }
}
