//! The end of a completed run: the block of `--stats`, and the two lines of `-v`.

use crate::report::number::{put_count, put_fraction, put_fraction_grouped};
use crate::report::tally::{Kinds, Tally, Traffic};
use std::io::Write;
use std::time::Duration;

/// Appends the block of `--stats`, without the blank line before it.
pub(super) fn put_statistics(
    out: &mut Vec<u8>,
    tally: &Tally,
    traffic: Traffic,
    human: u8,
    protocol: Option<u8>,
) {
    let kinds = |out: &mut Vec<u8>, words: &str, kinds: &Kinds| {
        out.extend_from_slice(words.as_bytes());
        // Counts are grouped with commas but never use units.
        put_count(out, kinds.total(), human.min(1));
        let mut between: &[u8] = b" (";
        for (word, count) in kinds.named().into_iter().filter(|(_, count)| *count > 0) {
            out.extend_from_slice(between);
            _ = write!(out, "{word}: ");
            put_count(out, count, human.min(1));
            between = b", ";
        }
        if kinds.total() > 0 {
            out.push(b')');
        }
        out.push(b'\n');
    };
    let count = |out: &mut Vec<u8>, words: &str, count: u64, human: u8, unit: &str| {
        out.extend_from_slice(words.as_bytes());
        put_count(out, count, human);
        out.extend_from_slice(unit.as_bytes());
        out.push(b'\n');
    };
    kinds(out, "Number of files: ", &tally.listed);
    // Older peers do not report these.
    let has_reported = |since: u8| protocol.is_none_or(|protocol| protocol >= since);
    if has_reported(29) {
        kinds(out, "Number of created files: ", &tally.created);
    }
    if has_reported(31) {
        kinds(out, "Number of deleted files: ", &tally.deleted);
    }
    count(
        out,
        "Number of regular files transferred: ",
        tally.transferred,
        human.min(1),
        "",
    );
    count(out, "Total file size: ", tally.total_bytes, human, " bytes");
    count(
        out,
        "Total transferred file size: ",
        tally.transferred_bytes,
        human,
        " bytes",
    );
    count(out, "Literal data: ", tally.literal_bytes, human, " bytes");
    count(out, "Matched data: ", tally.matched_bytes, human, " bytes");
    out.extend_from_slice(b"File list size: 0\n");
    if tally.list_generation_ms > 0 {
        let seconds = |ms: u64| format!("{}.{:03} seconds", ms / 1000, ms % 1000);
        _ = writeln!(
            out,
            "File list generation time: {}",
            seconds(tally.list_generation_ms)
        );
        _ = writeln!(
            out,
            "File list transfer time: {}",
            seconds(tally.list_transfer_ms)
        );
    }
    count(out, "Total bytes sent: ", traffic.sent_bytes, human, "");
    count(
        out,
        "Total bytes received: ",
        traffic.received_bytes,
        human,
        "",
    );
}

/// Appends the lines of `-v`. `elapsed` is the time since the run began.
pub(super) fn put_totals(
    out: &mut Vec<u8>,
    tally: &Tally,
    Traffic {
        sent_bytes,
        received_bytes,
    }: Traffic,
    elapsed: Duration,
    human: u8,
    remark: &[u8],
) {
    out.extend_from_slice(b"sent ");
    put_count(out, sent_bytes, human);
    out.extend_from_slice(b" bytes  received ");
    put_count(out, received_bytes, human);
    out.extend_from_slice(b" bytes  ");
    let traffic = (sent_bytes + received_bytes) as f64;
    put_fraction(out, traffic / (0.5 + elapsed.as_secs() as f64), human);
    out.extend_from_slice(b" bytes/sec\ntotal size is ");
    put_count(out, tally.total_bytes, human);
    out.extend_from_slice(b"  speedup is ");
    let speedup = if traffic > 0.0 {
        tally.total_bytes as f64 / traffic
    } else {
        0.0
    };
    put_fraction_grouped(out, speedup, human > 0);
    out.extend_from_slice(remark);
    out.push(b'\n');
}
