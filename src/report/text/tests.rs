//! Tests: the lines for each event, compared with rsync's output.

use super::*;
use crate::exit::Exit;
use crate::flist::{Kind, Time};
use crate::options::{Checksum, Debug, Info, LogFile, Outbuf, StderrMode};
use crate::plan::changes::Changes;
use crate::report::event::{Item, Update, Weight};
use crate::report::format::tests::{item, link};
use jiff::tz::TimeZone;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn text(&self) -> String {
        String::from_utf8(std::mem::take(&mut self.0.lock())).expect("UTF-8")
    }
}

/// 2026/11/21 00:46:53
const NOW: i64 = 1_795_222_013;

const FACTS: RunFacts = RunFacts {
    dry_run: false,
    leaves_dest: false,
    list_only: false,
    protocol: None,
    atimes: false,
    banner: Banner::Incremental,
    pid: 23811,
    utf8_locale: false,
    stdout_is_tty: false,
    log_as_sender: true,
    keeps_owner: true,
    keeps_group: true,
    keeps_hard_links: false,
    sum: Checksum::Xxh128,
    rooted: Vec::new(),
    at_server: false,
    is_named_ours: false,
    detects_renamed: false,
    verifies: false,
    records_plan: false,
};

struct Run {
    reporter: TextReporter,
    out: Shared,
    err: Shared,
    log: Shared,
    now_ms: Arc<AtomicI64>,
}

impl Run {
    fn new(output: &Output, facts: RunFacts) -> Run {
        let (out, err, log) = (Shared::default(), Shared::default(), Shared::default());
        let now_ms = Arc::new(AtomicI64::new(NOW * 1000));
        let clock_ms = Arc::clone(&now_ms);
        let clock = move || {
            let ms = clock_ms.load(Ordering::Relaxed);
            (ms.div_euclid(1000), ms.rem_euclid(1000) as u32 * 1_000_000)
        };
        let log_writer = output
            .log_file
            .is_some()
            .then(|| Box::new(log.clone()) as Box<dyn Write + Send>);
        let mut reporter = TextReporter::new(
            output,
            facts,
            Box::new(out.clone()),
            Box::new(err.clone()),
            log_writer,
            Arc::new(clock),
        );
        reporter.times = LocalTimes::new(TimeZone::UTC);
        if let Some(log) = &mut reporter.log {
            log.times = LocalTimes::new(TimeZone::UTC);
        }
        Run {
            reporter,
            out,
            err,
            log,
            now_ms,
        }
    }

    fn report(&mut self, event: Event) {
        self.reporter.report(&event);
    }

    fn items(&mut self, items: &[Item]) {
        for item in items {
            self.report(Event::Item(Box::new(item.clone())));
        }
        self.reporter.flush();
    }

    /// Returns the log without its times.
    fn log_lines(&self) -> String {
        let text = self.log.text();
        text.lines()
            .map(|line| {
                line.split_once("] ")
                    .map_or(line, |(_, rest)| rest)
                    .to_owned()
                    + "\n"
            })
            .collect()
    }
}

fn entry(name: &str, kind: Kind, update: Update, changes: Changes) -> Item {
    let transfer = update == Update::Received;
    Item {
        kind,
        update,
        changes,
        transfer,
        ..item(name)
    }
}

/// Returns entries of each sort, as in the trees that rsync's output was recorded from.
fn tree() -> Vec<Item> {
    use Update::*;
    let new = Changes::NEW;
    vec![
        entry(".", Kind::Dir, Attrs, Changes::TIME),
        entry("c_attr", Kind::Device, Attrs, Changes::PERMS),
        entry(
            "c_data",
            Kind::Device,
            Local,
            Changes::CHECKSUM | Changes::TIME,
        ),
        entry("c_same", Kind::Device, Attrs, Changes::NONE),
        entry("f_attr", Kind::File, Attrs, Changes::PERMS),
        entry("f_data", Kind::File, Received, Changes::SIZE),
        entry("f_same", Kind::File, Attrs, Changes::NONE),
        entry("h2_attr", Kind::File, HardLink, Changes::NONE),
        Item {
            changes: Changes::TIME,
            update: Attrs,
            ..link("l_attr")
        },
        link("l_new"),
        entry("d_attr", Kind::Dir, Attrs, Changes::PERMS),
        entry("d_new", Kind::Dir, Local, new),
        entry("d_same", Kind::Dir, Attrs, Changes::NONE),
        Item {
            linked_to: Some(b"h2_new".into()),
            ..entry("h1_new", Kind::File, HardLink, new)
        },
    ]
}

fn output(verbose: u8, itemize: u8, format: Option<&str>) -> Output {
    Output {
        verbose,
        itemize,
        human: 1,
        out_format: format.map(|f| f.into()),
        info: Info {
            name: verbose,
            flist: verbose.min(1),
            del: verbose,
            stats: verbose.min(1),
            ..Info::default()
        },
        ..Output::default()
    }
}

fn shown(output: &Output) -> String {
    let mut run = Run::new(output, FACTS);
    run.items(&tree());
    run.out.text()
}

#[test]
fn v_prints_names_of_changed_entries() {
    let want = "./\nc_data\nf_data\nl_new -> tgt\nd_attr/\nd_new/\nh1_new => h2_new\n";
    assert_eq!(shown(&output(1, 0, None)), want);
    assert_eq!(shown(&output(1, 0, Some("%n%L"))), want);
    assert_eq!(shown(&output(0, 0, Some("%n%L"))), want);
    assert_eq!(shown(&output(0, 2, Some("%n%L"))), want);
    assert_eq!(shown(&output(0, 0, Some(""))), "\n".repeat(7));
    assert_eq!(shown(&output(0, 0, None)), "");
    assert_eq!(
        shown(&Output {
            quiet: true,
            ..output(2, 2, Some("%i %n"))
        }),
        ""
    );
}

#[test]
fn vv_prints_names_of_unchanged_entries() {
    let want = "./\nc_attr\nc_same is uptodate\nf_attr\nf_same is uptodate\nh2_attr is uptodate\nl_attr\n\
                c_data\nf_data\nl_new -> tgt\nd_attr/\nd_new/\nh1_new => h2_new\n";
    assert_eq!(shown(&output(2, 0, None)), want);
    assert_eq!(shown(&output(2, 0, Some("%n%L"))), want);
    let at_once = Output {
        outbuf: Some(Outbuf::Line),
        ..output(2, 0, None)
    };
    let in_place = "./\nc_attr\nc_data\nc_same is uptodate\nf_attr\nf_data\nf_same is uptodate\n\
                    h2_attr is uptodate\nl_attr\nl_new -> tgt\nd_attr/\nd_new/\nh1_new => h2_new\n";
    assert_eq!(
        shown(&at_once),
        in_place,
        "each line is seen when it is printed"
    );
}

#[test]
fn itemize_prints_changed_or_all_entries() {
    let want = "\
.d..t...... ./
.D...p..... c_attr
cDc.t...... c_data
.D          c_same
.f...p..... f_attr
>f.s....... f_data
.f          f_same
hf          h2_attr
.L..t...... l_attr -> tgt
cL+++++++++ l_new -> tgt
.d...p..... d_attr/
cd+++++++++ d_new/
.d          d_same/
hf+++++++++ h1_new => h2_new
";
    assert_eq!(shown(&output(0, 2, Some("%i %n%L"))), want);
    assert_eq!(shown(&output(2, 1, Some("%i %n%L"))), want);
    let changed: String = want
        .lines()
        .filter(|line| !line.contains("         "))
        .map(|l| l.to_owned() + "\n")
        .collect();
    assert_eq!(shown(&output(0, 1, Some("%i %n%L"))), changed);
    assert_eq!(shown(&output(1, 1, Some("%i %n%L"))), changed);
}

#[test]
fn warning_that_blocks_are_copied_is_printed_once() {
    let mut run = Run::new(&output(0, 0, None), FACTS);
    for name in ["a", "b"] {
        let line = [
            b"cannot share blocks of ",
            name.as_bytes(),
            BLOCKS_ARE_COPIED,
        ]
        .concat();
        run.report(Event::Problem(Problem::new(line, Weight::Warning)));
    }
    run.reporter.flush();
    assert_eq!(run.err.text().matches("cannot share blocks of ").count(), 1);
}

fn deletions(output: &Output) -> String {
    let mut run = Run::new(output, FACTS);
    for (name, kind) in [(&b"xd/in"[..], Kind::File), (b"xd", Kind::Dir)] {
        run.report(Event::Deleted {
            name: name.into(),
            kind,
            mode: 0,
        });
    }
    run.reporter.flush();
    run.out.text()
}

#[test]
fn deletion_lines_follow_the_output_format() {
    let plain = "deleting xd/in\ndeleting xd/\n";
    assert_eq!(deletions(&output(1, 0, None)), plain);
    assert_eq!(deletions(&output(0, 0, Some("%n %b"))), plain);
    assert_eq!(deletions(&output(0, 0, Some(""))), plain);
    assert_eq!(
        deletions(&output(0, 1, Some("%i %n%L"))),
        "*deleting   xd/in\n*deleting   xd/\n"
    );
    assert_eq!(
        deletions(&output(0, 0, Some("%o %b %n"))),
        "del. 0 xd/in\ndel. 0 xd/\n"
    );
    assert_eq!(deletions(&output(0, 0, None)), "");
    let only_del = Output {
        info: Info {
            del: 1,
            ..Info::default()
        },
        ..Output::default()
    };
    assert_eq!(deletions(&only_del), plain);
    let only_name = Output {
        info: Info {
            name: 1,
            ..Info::default()
        },
        ..Output::default()
    };
    assert_eq!(deletions(&only_name), plain);
    assert_eq!(
        deletions(&Output {
            quiet: true,
            ..only_del
        }),
        ""
    );
}

fn with_log(output: Output, format: &str) -> Output {
    Output {
        log_file: Some(LogFile {
            path: b"LOG".into(),
            format: format.into(),
        }),
        ..output
    }
}

fn logged(output: &Output, facts: RunFacts) -> String {
    let mut run = Run::new(output, facts);
    run.reporter.banner();
    run.report(Event::Deleted {
        name: b"old".into(),
        kind: Kind::Dir,
        mode: 0,
    });
    run.items(&tree());
    run.log_lines()
}

#[test]
fn log_lines_follow_the_output_options() {
    let significant = "\
building file list
*deleting   old/
.d..t...... ./
cDc.t...... c_data
>f.s....... f_data
cL+++++++++ l_new -> tgt
.d...p..... d_attr/
cd+++++++++ d_new/
hf+++++++++ h1_new => h2_new
";
    let format = "%i %n%L";
    assert_eq!(
        logged(&with_log(output(0, 0, None), format), FACTS),
        significant
    );
    assert_eq!(
        logged(&with_log(output(1, 0, None), format), FACTS),
        significant
    );
    assert_eq!(
        logged(
            &with_log(
                Output {
                    quiet: true,
                    ..output(2, 0, None)
                },
                format
            ),
            FACTS
        ),
        significant
    );
    let dry = significant
        .replace("*deleting   old/\n", "")
        .replace(">f.s....... f_data\n", "");
    assert_eq!(
        logged(
            &with_log(output(0, 0, None), format),
            RunFacts {
                dry_run: true,
                ..FACTS
            }
        ),
        dry
    );

    let all = logged(&with_log(output(0, 2, Some(format)), format), FACTS);
    assert!(
        all.contains(".f...p..... f_attr\n") && all.contains(".f          f_same\n"),
        "{all}"
    );
    let names = logged(&with_log(output(0, 2, Some(format)), "%n"), FACTS);
    assert!(
        names.contains("\nf_attr\n") && !names.contains("f_same") && !names.contains("h2_attr"),
        "{names}"
    );
    assert!(names.contains("\ndeleting old/\n"), "{names}");
    let text = logged(&with_log(output(2, 0, None), format), FACTS);
    assert!(
        text.contains("\nf_attr\n") && text.contains("\nf_same is uptodate\n"),
        "{text}"
    );
    let empty = logged(&with_log(output(0, 0, None), ""), FACTS);
    assert_eq!(empty, "building file list\ndeleting old/\n");
}

#[test]
fn log_lines_begin_with_time_and_process_id() {
    let mut run = Run::new(&with_log(output(0, 0, None), "%n"), FACTS);
    run.report(Event::Item(Box::new(item("nl\n"))));
    run.reporter.flush();
    assert_eq!(run.log.text(), "2026/11/21 00:46:53 [23811] nl\\#012\n");
}

fn tally() -> Tally {
    let mut tally = Tally {
        list_generation_ms: 1,
        name_bytes: 10,
        ..Tally::default()
    };
    for (kind, len) in [
        (Kind::File, 123_456_789),
        (Kind::File, 1),
        (Kind::Symlink, 6),
        (Kind::Dir, 4096),
    ] {
        tally.list(kind, len, 0);
        tally.created.add(kind);
    }
    tally.transfer(123_456_789, 123_456_789);
    tally.transfer(1, 1);
    tally
}

fn summarized(output: Output, tally: &Tally, facts: RunFacts) -> String {
    let mut run = Run::new(&output, facts);
    run.reporter.summary(tally, Duration::from_millis(3999));
    run.out.text()
}

#[test]
fn statistics_match_rsync() {
    let stats = |human| Output {
        human,
        info: Info {
            stats: 2,
            ..Info::default()
        },
        ..Output::default()
    };
    let plain = "
Number of files: 4 (reg: 2, dir: 1, link: 1)
Number of created files: 4 (reg: 2, dir: 1, link: 1)
Number of deleted files: 0
Number of regular files transferred: 2
Total file size: 123456796 bytes
Total transferred file size: 123456790 bytes
Literal data: 123456790 bytes
Matched data: 0 bytes
File list size: 0
File list generation time: 0.001 seconds
File list transfer time: 0.000 seconds
Total bytes sent: 123456939
Total bytes received: 70

sent 123456939 bytes  received 70 bytes  35273431.14 bytes/sec
total size is 123456796  speedup is 1.00
";
    assert_eq!(summarized(stats(0), &tally(), FACTS), plain);
    let grouped = summarized(stats(1), &tally(), FACTS);
    assert!(grouped.contains("\nTotal file size: 123,456,796 bytes\n"));
    assert!(grouped.ends_with("\n\nsent 123,456,939 bytes  received 70 bytes  35,273,431.14 bytes/sec\ntotal size is 123,456,796  speedup is 1.00\n"));
    let units = summarized(stats(2), &tally(), FACTS);
    assert!(
        units.contains("\nTotal file size: 123.46M bytes\n")
            && units.contains("\nTotal bytes sent: 123.46M\n")
    );
    assert!(units.contains(
        "sent 123.46M bytes  received 70 bytes  35.27M bytes/sec\ntotal size is 123.46M  "
    ));
    let short = summarized(
        Output {
            info: Info {
                stats: 1,
                ..Info::default()
            },
            ..stats(1)
        },
        &tally(),
        FACTS,
    );
    assert!(short.starts_with("\nsent 123,456,939 bytes  "));
    assert_eq!(
        summarized(
            Output {
                info: Info::default(),
                ..stats(1)
            },
            &tally(),
            FACTS
        ),
        ""
    );
    assert_eq!(
        summarized(
            Output {
                quiet: true,
                ..stats(1)
            },
            &tally(),
            FACTS
        ),
        ""
    );

    let mut many = Tally::default();
    for _ in 0..1001 {
        many.list(Kind::File, 0, 0);
    }
    let text = summarized(
        stats(2),
        &many,
        RunFacts {
            dry_run: true,
            ..FACTS
        },
    );
    assert!(
        text.starts_with("\nNumber of files: 1,001 (reg: 1,001)\nNumber of created files: 0\n"),
        "{text}"
    );
    assert!(
        !text.contains("File list generation") && text.ends_with("speedup is 0.00 (DRY RUN)\n"),
        "{text}"
    );
}

#[test]
fn speedup_has_no_units() {
    let mut one = Tally::default();
    one.list(Kind::File, 12_345_678, 100);
    let speedup = |human| {
        let output = Output {
            human,
            info: Info {
                stats: 1,
                ..Info::default()
            },
            ..Output::default()
        };
        let text = summarized(output, &one, FACTS);
        text.rsplit_once(' ')
            .map(|(_, last)| last.trim().to_owned())
            .expect("a line")
    };
    assert_eq!(
        (
            speedup(0).as_str(),
            speedup(1).as_str(),
            speedup(2).as_str()
        ),
        ("81759.46", "81,759.46", "81,759.46")
    );
}

#[test]
fn log_ends_with_totals_and_error() {
    let quiet = with_log(output(0, 0, None), "%n");
    let mut run = Run::new(&quiet, FACTS);
    run.reporter.summary(&Tally::default(), Duration::ZERO);
    run.reporter.final_error(Exit::Partial, "sender");
    let error = "rsync error: some files/attrs were not transferred (see previous errors) (code 23) at main.c(1394) [sender=3.5.0]\n";
    let totals = "sent 19 bytes  received 12 bytes  total size 0\n";
    assert_eq!(run.log_lines(), format!("{totals}{error}"));
    assert_eq!(run.err.text(), error);

    // If stdout has a summary, the log gets it too, and after an error also the short one.
    let mut run = Run::new(&with_log(output(1, 0, None), "%n"), FACTS);
    run.reporter.summary(&Tally::default(), Duration::ZERO);
    assert_eq!(
        run.out.text(),
        "\nsent 19 bytes  received 12 bytes  62.00 bytes/sec\ntotal size is 0  speedup is 0.00\n"
    );
    run.reporter.final_error(Exit::Partial, "sender");
    let summary =
        "sent 19 bytes  received 12 bytes  62.00 bytes/sec\ntotal size is 0  speedup is 0.00\n";
    assert_eq!(run.log_lines(), format!("{summary}{totals}{error}"));

    // A usage error occurs before anything is counted.
    let mut run = Run::new(&quiet, FACTS);
    run.reporter.error(b"rsync: --bogus: unknown option");
    run.reporter.final_error(Exit::Usage, "client");
    assert_eq!(
        run.log_lines(),
        "rsync: --bogus: unknown option\nrsync error: syntax or usage error (code 1) at main.c(1886) [client=3.5.0]\n"
    );
}

#[test]
fn banner_lines_match_rsync() {
    let banner_of = |output: &Output, banner| {
        let mut run = Run::new(output, RunFacts { banner, ..FACTS });
        run.reporter.banner();
        run.reporter.set_list_total(1, 0, false);
        run.reporter.set_list_total(253, 0, true);
        run.reporter.flush();
        run.out.text()
    };
    let v = output(1, 0, None);
    assert_eq!(
        banner_of(&v, Banner::Incremental),
        "sending incremental file list\n"
    );
    assert_eq!(
        banner_of(&v, Banner::Whole),
        "building file list ... done\n"
    );
    assert_eq!(banner_of(&v, Banner::None), "");
    assert_eq!(
        banner_of(&output(0, 1, Some("%i")), Banner::Incremental),
        ""
    );
    assert_eq!(
        banner_of(
            &Output {
                quiet: true,
                ..v.clone()
            },
            Banner::Whole
        ),
        ""
    );
    let flist2 = Output {
        info: Info { flist: 2, ..v.info },
        ..v
    };
    assert_eq!(
        banner_of(&flist2, Banner::Incremental),
        "sending incremental file list\n"
    );
    assert_eq!(
        banner_of(&flist2, Banner::Whole),
        "building file list ... \n 0 files...\r 100 files...\r 200 files...\r253 files to consider\n"
    );
}

#[test]
fn deltasum_debug_prints_match_totals() {
    let output = Output {
        debug: Debug {
            deltasum: 1,
            ..Debug::default()
        },
        ..Output::default()
    };
    let text = summarized(output, &tally(), FACTS);
    assert_eq!(
        text,
        "total: matches=0  hash_hits=0  false_alarms=0 data=123456790\n"
    );
}

#[test]
fn problem_flushes_stdout_before_stderr() {
    let mut run = Run::new(&with_log(output(1, 0, None), "%n"), FACTS);
    run.report(Event::Item(Box::new(item("a"))));
    assert_eq!(run.out.text(), "");
    let line =
        "rsync: [sender] link_stat \"/s/nonex\u{1}\\\" failed: No such file or directory (2)";
    run.report(Event::Problem(Problem::new(line, Weight::Failed)));
    assert_eq!(run.out.text(), "a\n");
    let want =
        "rsync: [sender] link_stat \"/s/nonex\\#001\\\" failed: No such file or directory (2)\n";
    assert_eq!(run.err.text(), want);
    assert_eq!(run.reporter.problems().failed, 1);
    run.report(Event::Note(b"created directory d".into()));
    run.reporter.flush();
    assert_eq!(run.out.text(), "created directory d\n");
    assert_eq!(run.log_lines(), format!("a\n{want}created directory d\n"));
}

#[test]
fn stderr_all_prints_everything_to_stderr() {
    let mut run = Run::new(
        &Output {
            stderr: StderrMode::All,
            ..output(1, 0, None)
        },
        FACTS,
    );
    run.reporter.banner();
    run.items(&[item("a")]);
    run.report(Event::Problem(Problem::new(
        "file has vanished: \"b\"",
        Weight::Vanished,
    )));
    assert_eq!(run.out.text(), "");
    assert_eq!(
        run.err.text(),
        "sending incremental file list\na\nfile has vanished: \"b\"\n"
    );
}

#[test]
fn outbuf_determines_the_buffering() {
    let printed = |outbuf, stdout_is_tty| {
        let output = Output {
            outbuf,
            ..output(1, 0, None)
        };
        let mut run = Run::new(
            &output,
            RunFacts {
                stdout_is_tty,
                ..FACTS
            },
        );
        run.report(Event::Item(Box::new(item("a"))));
        run.out.text()
    };
    assert_eq!(printed(None, false), "");
    assert_eq!(printed(None, true), "a\n");
    assert_eq!(printed(Some(Outbuf::Line), false), "a\n");
    assert_eq!(printed(Some(Outbuf::None), false), "a\n");
    assert_eq!(printed(Some(Outbuf::Block), true), "");
}

#[test]
fn file_progress_follows_the_names() {
    let output = Output {
        info: Info {
            name: 1,
            progress: 1,
            ..Info::default()
        },
        ..output(0, 0, None)
    };
    let mut run = Run::new(&output, FACTS);
    run.reporter.set_list_total(9, 123, true);
    run.report(Event::Checked(5));
    run.items(&[item("f_data")]);
    run.report(Event::Progress {
        done_bytes: 6,
        len_bytes: 6,
    });
    run.report(Event::Checked(1));
    run.items(&[link("l")]);
    run.report(Event::Progress {
        done_bytes: 32768,
        len_bytes: 3_000_000,
    });
    run.now_ms.fetch_add(1023, Ordering::Relaxed);
    run.report(Event::Progress {
        done_bytes: 1_081_344,
        len_bytes: 3_000_000,
    });
    run.report(Event::Problem(Problem::new("x", Weight::Failed)));
    assert_eq!(
        run.out.text().replace('\r', "~"),
        "f_data\n\
         ~              6 100%    0.00kB/s    0:00:00  ~              6 100%    0.00kB/s    0:00:00 (xfr#1, to-chk=4/9)\n\
         l -> tgt\n\
         ~         32,768   1%    0.00kB/s    0:00:00  ~      1,081,344  36%    1.01MB/s    0:00:01  \n"
    );
}

#[test]
fn progress_precedes_a_line_printed_after_transfer() {
    let progress = Info {
        name: 1,
        progress: 1,
        ..Info::default()
    };
    let output = Output {
        info: progress,
        ..output(0, 0, Some("%n %b"))
    };
    let mut run = Run::new(&output, FACTS);
    let wants = run.reporter.wants();
    assert!(wants.begin && wants.after_transfer && wants.progress);
    run.reporter.set_list_total(2, 2, true);
    run.report(Event::Checked(1));
    run.report(Event::Begin(b"z1".into()));
    run.report(Event::Progress {
        done_bytes: 0,
        len_bytes: 0,
    });
    run.items(&[Item {
        moved_bytes: 45,
        ..item("z1")
    }]);
    assert_eq!(
        run.out.text(),
        "z1\n\r              0 100%    0.00kB/s    0:00:00 (xfr#1, to-chk=1/2)\nz1 45\n"
    );
}

#[test]
fn run_progress_is_one_line_until_the_end() {
    let info = |name| Info {
        name,
        progress: 2,
        stats: 1,
        ..Info::default()
    };
    let quietly = Output {
        info: info(0),
        ..output(0, 0, None)
    };
    let mut run = Run::new(&quietly, FACTS);
    run.reporter.set_list_total(2, 1, true);
    run.report(Event::Checked(2));
    run.items(&[
        entry(".", Kind::Dir, Update::Local, Changes::NEW),
        item("b"),
    ]);
    run.report(Event::Progress {
        done_bytes: 1,
        len_bytes: 1,
    });
    run.reporter.summary(&Tally::default(), Duration::ZERO);
    let last = "\r              1 100%    0.00kB/s    0:00:00 (xfr#1, to-chk=0/2)";
    assert_eq!(
        run.out.text(),
        format!(
            "\r              1 100%    0.00kB/s    0:00:00  {last}{last}\n\nsent 19 bytes  received 12 bytes  62.00 bytes/sec\ntotal size is 0  speedup is 0.00\n"
        )
    );

    let mut run = Run::new(
        &Output {
            info: info(1),
            ..quietly
        },
        FACTS,
    );
    run.items(&[item("a")]);
    run.report(Event::Progress {
        done_bytes: 0,
        len_bytes: 0,
    });
    run.items(&[item("b")]);
    assert!(run.out.text().ends_with("(xfr#1, ir-chk=0/0)\nb\n"));
}

#[test]
fn list_only_ignores_output_formats() {
    let facts = RunFacts {
        list_only: true,
        ..FACTS
    };
    let output = Output {
        human: 1,
        ..with_log(output(0, 1, Some("%i %n")), "%n")
    };
    let mut run = Run::new(&output, facts.clone());
    assert!(run.reporter.wants().unchanged);
    let mtime = Time {
        secs: NOW,
        nanos: 0,
    };
    run.items(&[Item {
        mtime,
        ..item("b\u{1}")
    }]);
    let want = "-rw-r--r--      1,234,567 2026/11/21 00:46:53 b\\#001\n";
    assert_eq!(
        (run.out.text().as_str(), run.log_lines().as_str()),
        (want, want)
    );
    let mut run = Run::new(
        &Output {
            quiet: true,
            ..output
        },
        facts,
    );
    run.items(&[item("b")]);
    assert_eq!((run.out.text().as_str(), run.log.text().as_str()), ("", ""));
}

#[test]
fn reporter_wants_only_events_that_it_prints() {
    let wants = |output: &Output| Run::new(output, FACTS).reporter.wants();
    assert_eq!(wants(&output(0, 0, None)), Wants::default());
    assert_eq!(
        wants(&Output {
            quiet: true,
            ..output(2, 2, Some("%i %C"))
        }),
        Wants::default()
    );
    let v = wants(&output(1, 0, None));
    assert!(v.items && !v.unchanged && !v.progress);
    assert!(wants(&output(2, 0, None)).unchanged && wants(&output(0, 2, Some("%i"))).unchanged);
    assert!(!wants(&output(0, 2, Some("%n"))).unchanged);
    let format = wants(&output(0, 0, Some("%n %C")));
    assert!(format.after_transfer && format.digest && !format.begin);
    let log = wants(&with_log(output(0, 0, None), "%b"));
    assert!(log.items && log.after_transfer && !log.unchanged);
}

#[test]
fn broken_output_pipe_is_recorded_without_error() {
    struct Broken;
    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let output = Output {
        outbuf: Some(Outbuf::Line),
        ..output(1, 0, None)
    };
    let mut run = Run::new(&output, FACTS);
    run.reporter.screen = Screen::new(
        &output,
        Charset::Log,
        false,
        Box::new(Broken),
        Box::new(std::io::sink()),
    );
    run.items(&[item("a"), item("b")]);
    assert!(run.reporter.lines_are_lost());
}

proptest! {
    #[test]
    fn any_file_name_takes_one_line(names: Vec<Vec<u8>>, utf8_locale: bool, eight_bit: bool) {
        let output = Output { eight_bit, ..output(1, 0, None) };
        let mut run = Run::new(&output, RunFacts { utf8_locale, ..FACTS });
        let items: Vec<Item> = names.iter().map(|name| Item { name: name.clone(), ..item("") }).collect();
        run.items(&items);
        let bytes = run.out.0.lock().clone();
        prop_assert_eq!(bytes.iter().filter(|&&b| b == b'\n').count(), names.len());
    }
}
