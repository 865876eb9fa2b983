//! Tests of the lines of the live display and of what it measures.

use super::*;
use crate::flist::Kind;
use crate::report::tally::{Tally, Traffic};

const SECS: Duration = Duration::from_secs(83);
const RATE: Rate = Rate {
    copied: 103_400_000,
    done: 110_000_000,
};

fn counts() -> Counts {
    Counts {
        listed: (45_678, 2_850_000_000),
        list_is_complete: true,
        done: (12_345, 1_200_000_000),
        copied: (1_034, 900_000_000),
        given_up: (0, 0),
        skipped: 0,
        deleted: 0,
        renamed: 0,
        reconnections: 0,
        failures: 0,
        last_failure: Vec::new(),
        is_deleting: false,
        silence: Duration::ZERO,
        files: vec![
            (
                b"images/a very long name of a disk image\n.img".to_vec(),
                540_000_000,
                1_200_000_000,
            ),
            ("später.iso".as_bytes().to_vec(), 3_000_000, 4_000_000),
        ],
    }
}

fn shown(counts: &Counts, width: usize) -> Vec<String> {
    let rates = Some(RATE);
    let route = "box, by QUIC, port 28792";
    lines(
        &Moment {
            counts,
            rates,
            files_left: &[Some(7), None],
            stalled: None,
            elapsed: SECS,
            route,
            charset: Charset::Utf8,
        },
        width,
    )
}

#[test]
fn lines_fit_the_width() {
    assert_eq!(
        shown(&counts(), 80),
        [
            "copying, 1:23, 1,034 files copied  box, by QUIC, port 28792",
            "  42%  1.20GB of 2.85GB  12,345 of 45,678 entries  103.40MB/s  ETA 0:15",
            "  images/a very long name of a disk image\\#012.img   45% of 1.20GB  ETA 0:07",
            "  später.iso   75% of 4.00MB",
        ]
    );
    assert_eq!(
        shown(&counts(), 40),
        [
            "copying, 1:23, 1,034 files copied  box, ",
            "  42%  1.20GB of 2.85GB",
            "  ...\\#012.img   45% of 1.20GB  ETA 0:07",
            "  später.iso   75% of 4.00MB",
        ]
    );
    let wide = Counts {
        files: vec![(
            "\u{5199}\u{771f}/\u{4e00}\u{4e8c}\u{4e09}.img".into(),
            1,
            4_000_000,
        )],
        ..counts()
    };
    for columns in 0..100 {
        for counts in [&counts(), &wide] {
            for line in shown(counts, columns) {
                assert!(width(&line) <= columns, "{columns}: {line}");
            }
        }
    }
}

#[test]
fn time_of_a_file_follows_its_own_rate() {
    let mut times = FileTimes::default();
    let at = |secs: u64, files: &[(&[u8], u64, u64)]| {
        let files = files
            .iter()
            .map(|(path, done, len)| (path.to_vec(), *done, *len));
        let counts = Counts {
            files: files.collect(),
            ..Counts::default()
        };
        (Duration::from_secs(secs), counts)
    };
    let mut measure = |(now, counts): (Duration, Counts)| times.measure(now, &counts);
    assert_eq!(measure(at(10, &[(b"a", 100, 1000)])), [None]);
    assert_eq!(
        measure(at(12, &[(b"a", 300, 1000), (b"b", 0, 9)])),
        [Some(7), None]
    );
    // It rests, and the other one goes on.
    assert_eq!(
        measure(at(16, &[(b"a", 300, 1000), (b"b", 8, 9)])),
        [Some(21), Some(0)]
    );
    // It is sent again.
    assert_eq!(measure(at(17, &[(b"a", 0, 1000)])), [None]);
}

#[test]
fn results_name_what_else_happened() {
    let busy = Counts {
        skipped: 44,
        deleted: 1_200,
        renamed: 30,
        reconnections: 2,
        failures: 3,
        ..counts()
    };
    assert_eq!(
        shown(&busy, 200)[0],
        "copying, 1:23, 1,004 files copied, 3 FAILED, 44 skipped, 30 renamed, 1,170 deleted, 2 reconnections  box, by QUIC, port 28792"
    );
}

#[test]
fn remaining_time_is_marked_until_the_list_is_complete() {
    let growing = Counts {
        list_is_complete: false,
        ..counts()
    };
    let lines = shown(&growing, 200);
    assert!(lines[0].starts_with("listing and copying, "), "{lines:?}");
    assert_eq!(
        lines[1],
        "  1.20GB of 2.85GB+  12,345 of 45,678+ entries  103.40MB/s  ETA 0:15+  mean 10.84MB/s"
    );
}

#[test]
fn stall_takes_the_place_of_rate_and_remaining_time() {
    let counts = counts();
    let moment = Moment {
        counts: &counts,
        rates: Some(RATE),
        files_left: &[],
        stalled: Some((Duration::from_millis(7900), "box")),
        elapsed: SECS,
        route: "box, by QUIC",
        charset: Charset::Utf8,
    };
    assert_eq!(
        lines(&moment, 200)[1],
        "  42%  1.20GB of 2.85GB  12,345 of 45,678 entries  stalled 7 s: no data from box"
    );
}

#[test]
fn plain_line_says_what_the_display_shows() {
    let counts = counts();
    let moment = Moment {
        counts: &counts,
        rates: Some(RATE),
        files_left: &[],
        stalled: None,
        elapsed: SECS,
        route: "box, by QUIC",
        charset: Charset::Utf8,
    };
    assert_eq!(
        plain_line(&moment),
        "sparsync: copying, 1:23, 42%, 1.20GB of 2.85GB, 12,345 of 45,678 entries, 103.40MB/s, ETA 0:15, \
         mean 10.84MB/s, 1,034 files copied"
    );
}

#[test]
fn run_is_stalled_if_link_and_counters_rest() {
    let at = |secs: u64, silence: u64, done: u64| {
        let counts = Counts {
            silence: Duration::from_secs(silence),
            done: (0, done),
            ..counts()
        };
        (Duration::from_secs(secs), counts)
    };
    let mut stall = Stall::default();
    let mut measure = |(now, counts): (Duration, Counts)| stall.measure(now, &counts);
    let secs = |secs| Some(Duration::from_secs(secs));
    assert_eq!(measure(at(1, 0, 1)), None);
    assert_eq!(measure(at(3, 2, 1)), None);
    assert_eq!(measure(at(4, 3, 1)), secs(3));
    assert_eq!(measure(at(9, 8, 1)), secs(8));
    // The counters move although the link rests, and the other way round.
    assert_eq!(measure(at(10, 9, 2)), None);
    assert_eq!(measure(at(20, 1, 2)), None);
}

#[test]
fn stopped_run_says_how_much_is_done() {
    assert_eq!(
        stopped(&counts(), Knowledge::InPlace),
        "stopped at 42%: 12,345 of 45,678 entries are in place, 1.20GB of 2.85GB; run again to continue"
    );
    let growing = Counts {
        list_is_complete: false,
        ..counts()
    };
    assert_eq!(
        stopped(&growing, Knowledge::Sent),
        "stopped: 12,345 of 45,678+ entries are up to date or were sent, 1.20GB of 2.85GB+; run again to continue"
    );
    assert_eq!(
        stopped(&counts(), Knowledge::Compared),
        "stopped at 42%: 12,345 of 45,678 entries were compared, 1.20GB of 2.85GB"
    );
    let failed = Counts {
        given_up: (2, 200_000_000),
        failures: 5,
        ..counts()
    };
    assert_eq!(
        stopped(&failed, Knowledge::InPlace),
        "stopped at 35%: 12,340 of 45,678 entries are in place, 1.00GB of 2.85GB; run again to continue"
    );
}

#[test]
fn rows_are_those_of_a_terminal_that_wraps() {
    assert_eq!(rows("", 10), 1);
    assert_eq!(rows("0123456789", 10), 1);
    assert_eq!(rows("0123456789a", 10), 2);
    // A wide character does not fit into the last column.
    assert_eq!(rows("012345678\u{5199}", 10), 2);
    assert_eq!(rows("\u{5199}", 1), 1);
}

#[test]
fn mark_without_its_letter_is_dropped() {
    let name = "aaaae\u{301}bcd".as_bytes();
    assert_eq!(ending(name, 6, Charset::Utf8), "...bcd");
    assert_eq!(ending(name, 7, Charset::Utf8), "...e\u{301}bcd");
}

#[test]
fn phase_follows_the_counts() {
    let phase = |counts: &Counts| shown(counts, 200)[0].split(',').next().map(str::to_owned);
    assert_eq!(phase(&Counts::default()).as_deref(), Some("listing"));
    assert_eq!(
        phase(&Counts {
            is_deleting: true,
            ..counts()
        })
        .as_deref(),
        Some("deleting")
    );
    let all = Counts {
        done: (50_000, u64::MAX),
        ..counts()
    };
    assert_eq!(phase(&all).as_deref(), Some("finishing"));
    assert!(shown(&all, 200)[1].starts_with("  100%  2.85GB of 2.85GB  45,678 of 45,678 entries"));
}

fn moment(secs: u64, copied: u64, skipped: u64) -> (Duration, Counts) {
    let counts = Counts {
        copied: (0, copied),
        done: (0, copied + skipped),
        ..Counts::default()
    };
    (Duration::from_secs(secs), counts)
}

#[test]
fn rates_cover_the_last_seconds() {
    let mut rates = Rates::default();
    let mut measure = |secs, copied| {
        let (now, counts) = moment(secs, copied, 0);
        let rate = rates.measure(now, &counts)?;
        assert_eq!(rate.copied, rate.done);
        Some(rate.copied)
    };
    assert_eq!(measure(0, 0), None);
    assert_eq!(measure(1, 50), Some(50));
    assert_eq!(measure(20, 1000), Some(50));
    assert_eq!(measure(40, 1000), Some(0));
    // The run is repeated.
    assert_eq!(measure(41, 10), None);
}

/// Returns the rate that counts for the remaining time after each second. `skipped`: the bytes skipped in it.
fn done_rates(skipped: &[u64]) -> Vec<u64> {
    let mut rates = Rates::default();
    let mut so_far = 0;
    let (begin, none) = moment(0, 0, 0);
    rates.measure(begin, &none);
    let mut found = Vec::new();
    for (at, more) in skipped.iter().enumerate() {
        so_far += more;
        let secs = at as u64 + 1;
        // What is copied goes on at 10 bytes per second.
        let (now, counts) = moment(secs, 10 * secs, so_far);
        let rate = rates.measure(now, &counts);
        found.push(rate.map_or(0, |rate| rate.done));
    }
    found
}

#[test]
fn burst_of_skipped_files_is_no_rate() {
    let burst = [0, 0, 0, 0, 90_000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(done_rates(&burst), [10; 18]);
    // At the beginning, it is forgotten after a second.
    assert_eq!(done_rates(&[90_000, 0, 0, 0]), [90_010, 10, 10, 10]);
    assert_eq!(
        done_rates(&[90_000, 90_000, 0, 0, 0]),
        [90_010, 90_010, 90_010, 10, 10]
    );
}

#[test]
fn files_that_are_skipped_all_the_time_count() {
    assert_eq!(done_rates(&[500; 30]), [510; 30]);
    let uneven: Vec<u64> = (0..30).map(|at| [400, 500, 600][at % 3]).collect();
    for rate in &done_rates(&uneven)[2..] {
        assert!([410, 510].contains(rate), "{rate}");
    }
}

#[test]
fn summary_compares_with_a_full_copy() {
    let mut tally = Tally::default();
    tally.list(Kind::File, 1_000_000, 1);
    tally.list(Kind::File, 9_000_000, 1);
    tally.transfer(1_000_000, 250_000);
    tally.created.add(Kind::File);
    let of = |traffic, dry_run| {
        summary(
            &tally,
            Renames::default(),
            traffic,
            Duration::from_millis(2500),
            dry_run,
            "local copy",
            None,
        )
    };
    assert_eq!(
        of(None, false),
        [
            "1 of 2 files copied, 1 entries created, 0 deleted",
            "250.00KB written, 2.5% of a full copy (10.00MB)",
            "2.5 s, 400.00KB/s, local copy",
        ]
    );
    assert_eq!(
        of(
            Some(Traffic {
                sent_bytes: 30_000,
                received_bytes: 200
            }),
            false
        )[1],
        "30.00KB sent, 200B received, 0.3% of a full copy (10.00MB)"
    );
    assert_eq!(
        of(None, true),
        [
            "1 of 2 files would be copied, 1 entries would be created, 0 would be deleted",
            "1.00MB would be copied, 10.0% of a full copy (10.00MB)",
            "2.5 s, local copy",
        ]
    );
}

#[test]
fn renamed_files_count_as_nothing_else() {
    let mut tally = Tally::default();
    for len_bytes in [1_000_000, 9_000_000] {
        tally.list(Kind::File, len_bytes, 1);
        tally.transfer(len_bytes, 0);
        tally.created.add(Kind::File);
    }
    tally.deleted.add(Kind::File);
    tally.deleted.add(Kind::Dir);
    let renames = Renames {
        files: 1,
        bytes: 9_000_000,
    };
    let second = Duration::from_secs(1);
    let shown = |dry_run| summary(&tally, renames, None, second, dry_run, "local copy", None);
    assert_eq!(
        shown(false),
        [
            "1 of 2 files copied, 1 renamed, 1 entries created, 1 deleted",
            "0B written, 0.0% of a full copy (10.00MB)",
            "1.0 s, 1.00MB/s, local copy",
        ]
    );
    assert_eq!(
        shown(true)[..2],
        [
            "1 of 2 files would be copied, 1 would be renamed, 1 entries would be created, 1 would be deleted",
            "1.00MB would be copied, 10.0% of a full copy (10.00MB)",
        ]
    );
}

#[test]
fn failures_are_shown_and_do_not_count_as_copied() {
    let mut tally = Tally::default();
    tally.list(Kind::File, 1_000_000, 1);
    tally.list(Kind::File, 9_000_000, 1);
    tally.transfer(1_000_000, 1_000_000);
    tally.transfer(9_000_000, 0);
    tally.unsend(9_000_000);
    let failures = Failures {
        count: 1,
        exit: 23,
        first: b"rsync: [sender] send_files failed to open \"/s/a\x1b\": Permission denied (13)",
        charset: Charset::Utf8,
    };
    let lines = summary(
        &tally,
        Renames::default(),
        None,
        Duration::from_secs(1),
        false,
        "local copy",
        Some(&failures),
    );
    assert_eq!(
        lines,
        [
            "1 of 2 files copied, 0 entries created, 0 deleted",
            "1 copied, 1 FAILED (exit 23), first: rsync: [sender] send_files failed to open \"/s/a\\#033\": Permission denied (13)",
            "1.00MB written, 10.0% of a full copy (10.00MB)",
            "1.0 s, 1.00MB/s, local copy",
        ]
    );
    let running = Counts {
        failures: 3,
        last_failure: b"rsync: \x1b".to_vec(),
        ..counts()
    };
    let last = shown(&running, 80).pop();
    assert_eq!(last.as_deref(), Some("  last error: rsync: \\#033"));
    assert_eq!(
        shown(&running, 80)[0],
        "copying, 1:23, 1,034 files copied, 3 FAILED  box, by QUIC, port 28792"
    );
}
