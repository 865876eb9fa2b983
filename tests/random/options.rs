//! Random command lines for random trees.

use super::tree::{
    Dice, Entry, Extra, Kind, PATTERNS, consistent, enlarge, random, relative, rule, text,
};
use crate::kit::{Cut, Loss, LossKind, Route, Who};

/// The source, the destination, and the tree that alternates name.
pub const TREES: [&str; 3] = ["src", "dst", "alt"];

/// Trees, and a command line to copy them. It is a pure function of a seed and a route.
#[derive(Clone, PartialEq)]
pub struct Case {
    pub who: Who,
    /// The entries of each of [`TREES`].
    pub trees: [Vec<Entry>; 3],
    /// Lines of the list of `--files-from` and of the file of rules.
    pub list: Vec<Vec<u8>>,
    pub rules: Vec<Vec<u8>>,
    /// The base, then further options, in one word each.
    pub options: Vec<String>,
    pub sources: Vec<String>,
    pub dest_name: &'static str,
}

const BASES: &str = "-a -a -a -a -aH -aHAX -r -rlt -rt -rlptgoD -aAX -dlt";
/// The part of a rule before its pattern.
const RULES: &str = "--exclude= --exclude= --include= -f-_ -f+_ -fH_ -fP_ -fS_ -fR_ -f-!_ -f-/_ -f-p_ -f-s_ -f-r_ -f+p_";
const MERGES: &str = "-F -FF -f:_.r -f:-_.r -f:+_.r -f:C -f:n_.r -f:e_.r -f:s_.r -f:r_.r -f:p_.r -f:_/.r -C \
    -f._rules -f.-_rules --exclude-from=rules --include-from=rules";
const BACKUPS: &str = "-b -b --suffix=.o --backup-dir={W}/bak";
const DELETIONS: &str = "--delete --delete --delete --delete-before --del --delete-delay --delete-after --force \
    --delete-excluded --ignore-errors --max-delete=1 --max-delete=0";
const ALTERNATES: &str = "--compare-dest=../alt --copy-dest=../alt --link-dest=../alt --link-dest=../src \
    --copy-dest={W}/alt --clone-dest=../alt --clone-dest={W}/alt";
const WRITING: &str = "--inplace --append --append-verify --partial --partial-dir=.p --delay-updates \
    --no-whole-file -W --temp-dir={W}/tmp --sparse --preallocate --fuzzy -yy -B700";
const ATTRIBUTES: &str = "-X -A -E -H -p -o -t -O -J -l -L -k -K --safe-links --copy-unsafe-links --munge-links \
    --numeric-ids --fake-super --no-perms --no-times --no-links --no-D --devices --chmod=g+w,Dg+s --chmod=F600 \
    --chmod=u=rwX,go= --usermap=root:lp,lp:9 --groupmap=*:9 --chown=7:8 --no-owner --no-group";
const SELECTION: &str = "--existing --ignore-existing -u --size-only -c -I --max-size=10 --min-size=5 --max-size=1K \
    --modify-window=6 --modify-window=-1 -m -x -R -d --no-r";
const OUTPUT: &str = "-i -i -ii -v -v --stats --out-format=%i_%n%L_%l --out-format=[%o_%M]_%f -q \
    --info=del2,name1 --list-only -8";
const OTHERS: &str = "-n --remove-source-files --no-inc-recursive -z --no-implied-dirs --mkpath --inc-recursive \
    --delete-missing-args --ignore-missing-args --no-R -r";

/// What a second attempt after a lost connection could do twice, or decide in another way.
const REPEATED: &str = "--append --append-verify --inplace --inplace -b --suffix=.o --backup-dir={W}/bak --delete --delete-after \
    --delete-delay --delete-before --max-delete=1 --remove-source-files --remove-source-files --ignore-existing --existing -u \
    --size-only -I -c --compare-dest=../alt --copy-dest=../alt --clone-dest=../alt --link-dest=../alt --fuzzy --delay-updates --partial \
    --partial-dir=.p --temp-dir={W}/tmp --force -K -H -W --no-whole-file --stats -v --info=name1,del2 --log-file={W}/run.log \
    --out-format=%i_%n%L_%l";

/// The beginnings of options that prevent a second attempt.
const FORBID_REPEAT: &str = "--append --inplace -b --backup --max-delete --remove-source-files --existing -n --list-only --no-p";

/// A reason to leave cases out, and which cases.
type Known = (&'static str, fn(&Case, Route) -> bool);

/// Differences that docs/DIFFERENCES.md lists, and commands whose result is a matter of time.
const KNOWN: [Known; 50] = [
    ("an rsync shares no blocks", |case, on| {
        let is_push = matches!(on, Route::Push(_));
        let is_rsync_there = on.is_served() || on.is_stock() && is_push;
        // The client sends what an rsync would understand.
        let old = [
            "--protocol=27",
            "--protocol=28",
            "--protocol=29",
            "--protocol=30",
        ];
        let is_old = old.iter().any(|option| case.has(&[option]));
        case.has(&["--clone-dest"]) && (is_rsync_there || is_push && is_old)
    }),
    ("two options that are one for rsync conflict", |case, _| {
        let others = ["--copy-dest", "--link-dest", "--compare-dest"];
        let has_other = others.iter().any(|other| case.has(&[other]));
        case.has(&["--clone-dest"]) && has_other
    }),
    ("a server speaks only its own protocol", |case, on| {
        on.is_by_server() && case.has(&["--protocol"])
    }),
    ("lines have the order of later protocols", |case, _| {
        case.is_early() && case.prints()
    }),
    (
        "two processes reject it, unless one ends the other first",
        |case, _| case.is_early() && (case.has(&["-m"]) || case.is_fuzzy()),
    ),
    (
        "the last name of a file is sent at another time",
        |case, _| case.has(&["-H", "--out-format=["]),
    ),
    (
        "the place of deletions among other lines varies",
        |case, _| {
            let may_delete = case.has(&["--del"]) || case.has(&["--force"]);
            case.has(&["--del", "--out-format="])
                || case.has(&["--force"]) && case.prints()
                || may_delete && case.prints() && case.replaces_full_dir()
        },
    ),
    ("the owner keeps access to new directories", |case, _| {
        case.has(&["--chmod=u"])
    }),
    (
        "rsync ends at a time of its own after an error in a merge file",
        |case, _| {
            let mut entries = case.trees.iter().flatten();
            let is_link = |entry: &Entry| {
                entry.path.ends_with(b".r") && matches!(entry.kind, Kind::Symlink(_))
            };
            case.has(&["-f:r"]) || case.has(&["-f:s"]) || case.has(&["-f:"]) && entries.any(is_link)
        },
    ),
    (
        "a file that continues a partial one keeps its ACL in rsync",
        |case, _| {
            case.trees[1].iter().any(|entry| {
                entry.extra == Extra::Acl
                    && entry.path.split(|&b| b == b'/').any(|part| part == b".p")
            })
        },
    ),
    (
        "only a pull of rsync munges symlinks that are not munged yet, but equal",
        |case, on| case.has(&["--munge-links"]) && matches!(on, Route::Pull(_)),
    ),
    (
        "rsync enters directories that the destination cannot have",
        |case, _| case.has(&["--ignore-existing"]) && case.has_clash(false),
    ),
    (
        "rsync loses other names of a file that cannot replace a directory, or that several arguments name",
        |case, _| case.has(&["-H"]) && (case.has_clash(true) || case.sources.len() > 1),
    ),
    (
        "an ordinary user's rsync makes a file writable before it backs it up and deletes it, or leaves it",
        |case, _| {
            case.who == Who::User
                && (case.is_backed_up() || case.has(&["--max-delete"]))
                && case.trees[1].iter().any(|e| e.mode == Some(0o444))
        },
    ),
    (
        "rsync creates no file that has the length of a similar or alternate one",
        |case, _| case.has(&["--append"]) && (case.has_alternate() || case.is_fuzzy()),
    ),
    (
        "rsync makes no backup of what an alternate tree replaces",
        |case, _| {
            let [source, dest, alt] = &case.trees;
            let is_in =
                |tree: &[Entry], there: &Entry| tree.iter().any(|entry| entry.path == there.path);
            let is_in_all = dest
                .iter()
                .any(|there| is_in(source, there) && is_in(alt, there));
            case.is_backed_up() && case.has_alternate() && is_in_all
        },
    ),
    (
        "a local copy obeys rules that the protocol lacks",
        |case, on| {
            let is_old = case.is_early() || case.has(&["--protocol=29"]);
            is_old && case.has_modern_rules() && !on.is_far()
        },
    ),
    (
        "rsync reports missing alternate trees at a time of its own",
        |case, _| case.has_alternate() && (case.has(&["--list-only"]) || case.is_early()),
    ),
    (
        "rsync applies the merge files of the first source to the others",
        |case, _| case.sources.len() > 1 && (case.has(&["-f:"]) || case.has(&["-F"])),
    ),
    (
        "rsync forgets a merge file of a parent directory after the first listed name",
        |case, _| case.has(&["-f:_/"]) && case.list.len() > 1,
    ),
    (
        "rsync does not warn about a parent that is absent after a directory that --existing skips",
        |case, _| case.has(&["--existing", "--delete-missing-args"]),
    ),
    (
        "rsync warns about symlinks of other users when it deletes by merge files at the end",
        |case, _| case.has(&["-f:C", "--delete-after"]),
    ),
    (
        "rsync loses the group's entry of an ACL if a mode has special bits",
        |case, _| {
            let mut entries = case.trees.iter().flatten();
            let is_special = |entry: &Entry| entry.mode.is_some_and(|mode| mode & 0o7000 != 0);
            case.has(&["-A"]) && entries.any(is_special)
        },
    ),
    (
        "rsync rejects names that a rule forbids at the destination's own path",
        |case, on| case.has(&["-f-/"]) && matches!(on, Route::Pull(_)),
    ),
    (
        "rsync rejects a listed name that begins with a dot",
        |case, _| {
            let is_old = case.is_early() || case.has(&["--protocol=29"]);
            is_old && case.has(&["--no-implied-dirs"]) && !case.list.is_empty()
        },
    ),
    (
        "names of one file that are appended to one after the other depend on the order",
        |case, _| {
            let mut dest = case.trees[1].iter();
            case.has(&["--append"]) && dest.any(|entry| matches!(entry.kind, Kind::HardLink(_)))
        },
    ),
    (
        "rsync copies neither the ACL nor, by an old protocol, the exact time of a backup of a file that it changes in place",
        |case, _| {
            let is_in_place = case.has(&["--inplace"]) || case.has(&["--append"]);
            case.is_backed_up() && is_in_place && (case.has(&["-A"]) || case.has(&["--protocol"]))
        },
    ),
    (
        "a source without entries does not delete a whole tree (--delete-guard)",
        |case, _| {
            let is_whole = case
                .sources
                .iter()
                .any(|word| word.trim_start_matches("./") == "src/");
            case.has(&["--del"])
                && case.trees[1].len() > 10
                && (!is_whole || case.trees[0].is_empty())
        },
    ),
    (
        "the notes about unsafe symlinks come before the end of a line about the list",
        |case, _| case.has(&["--copy-unsafe-links", "-m"]) && case.prints(),
    ),
    ("a dry run of the guard fails before the run", |case, _| {
        case.is_early() && case.has(&["--delete-missing-args"]) && case.has_rules()
    }),
    ("rsync may never end", |case, _| {
        case.has(&["-H"]) && case.has_alternate()
    }),
    (
        "rsync prints on standard output that deletions were stopped",
        |case, _| case.is_early() && case.has(&["--max-delete"]),
    ),
    (
        "a new file does not get the mode of a similar, alternate or replaced one",
        |case, _| {
            !case.keeps_modes()
                && (case.is_fuzzy()
                    || case.has_alternate()
                    || case.has(&["-A"])
                    || case.replaces_other())
        },
    ),
    (
        "rsync takes a replaced file for a similar one",
        |case, _| case.is_fuzzy() && case.has_clash(false),
    ),
    (
        "delayed files are not in the temporary directory",
        |case, _| case.has(&["--delay-updates", "--temp-dir"]),
    ),
    (
        "rsync rejects implied directories that its own rules exclude",
        |case, on| {
            let implies = !case.list.is_empty() || case.has(&["-R"]);
            matches!(on, Route::Pull(_)) && implies && case.has_rules()
        },
    ),
    (
        "without -o and -g, rsync stores numbers without meaning",
        |case, _| case.has(&["--fake-super"]) && (!case.has(&["-o", "-g"]) || case.has(&["--no-"])),
    ),
    (
        "a receiving rsync gives everything to user or group 0",
        |case, on| {
            let drops =
                |option, map| case.has(&[option]) && (case.has(&[map]) || case.has(&["--chown"]));
            matches!(on, Route::Push(_))
                && (drops("--no-owner", "--usermap") || drops("--no-group", "--groupmap"))
        },
    ),
    (
        "an entry that several arguments name is sent and counted once",
        |case, on| {
            on.is_far() && (case.sources.len() > 1 || !case.list.is_empty()) && case.prints()
        },
    ),
    (
        "rsync does not back up a link or fifo that has the name of a backup",
        |case, _| case.is_backed_up() && case.replaces_other(),
    ),
    ("rsync loses attributes of directories", |case, _| {
        case.has(&["-X"]) && case.is_early()
    }),
    ("rsync fails to copy attributes in a dry run", |case, _| {
        case.has(&["-X", "-n"]) && case.has_alternate()
    }),
    (
        "rsync exits with 25 rather than 23 if the sender of a push failed and deletions were stopped",
        |case, _| {
            let may_fail =
                case.sources.len() > 1 || !case.list.is_empty() || case.has(&["--ignore-errors"]);
            case.has(&["--max-delete"]) && may_fail
        },
    ),
    (
        "--chmod does not change the entry of the group in ACLs, and --fake-super stores each ACL as it is",
        |case, _| {
            let has_acl = case
                .trees
                .iter()
                .flatten()
                .any(|entry| entry.extra == Extra::Acl);
            case.has(&["-A"]) && has_acl && (case.has(&["--chmod"]) || case.has(&["--fake-super"]))
        },
    ),
    (
        "a client does not learn from rsync's daemon that deletions were stopped",
        |case, on| case.has(&["--max-delete"]) && on.is_daemon(),
    ),
    (
        "without chroot, rsync's daemon does not find listed names",
        |case, on| on.is_daemon() && case.who == Who::User && !case.list.is_empty(),
    ),
    (
        "rsync prints T for times of symlinks that it sets",
        |case, _| case.has(&["--protocol=29"]) && case.prints(),
    ),
    (
        "a file that is sent again is printed at any time",
        |case, _| case.has(&["--append-verify"]) && case.prints(),
    ),
    (
        "a file that several arguments name may vanish when rsync has copied it",
        |case, _| case.has(&["--remove-source"]) && case.sources.len() > 1,
    ),
    (
        "rsync finds out later that a directory is missing",
        |case, _| case.has(&["--no-implied-dirs"]) && case.has_clash(false),
    ),
];

impl Case {
    /// Returns the case of a seed on a route.
    pub fn nth(seed: u64, route: Route) -> Case {
        let mut dice = Dice(seed.wrapping_mul(0x1000_0000_01b3));
        loop {
            let case = Case::drawn(&mut dice);
            if case.known(route).is_none() {
                return case;
            }
        }
    }

    /// Returns the case of a seed on a route for runs that lose their connection, and how they lose it.
    pub fn losing(seed: u64, route: Route) -> (Case, Vec<Loss>) {
        let mut dice = Dice(seed.wrapping_mul(0x1000_0000_01b3) ^ 1);
        loop {
            let mut case = Case::drawn(&mut dice);
            if dice.one_in(2) {
                case.options[0] = dice.word("-a -a -aH -aHAX").to_owned();
                case.options.retain(|option| {
                    !FORBID_REPEAT
                        .split_whitespace()
                        .any(|word| option.starts_with(word))
                });
            }
            let mut further: Vec<_> = (0..1 + dice.below(3))
                .map(|_| dice.word(REPEATED))
                .collect();
            further.extend(dice.one_in(2).then_some("-i"));
            for option in further {
                if !case.options.iter().any(|known| known == option) {
                    case.options.push(option.to_owned());
                }
            }
            // With the destination below it, a second attempt finds a source with another time.
            if case.has(&["-R", "./"]) && case.dest_name.starts_with("new") {
                continue;
            }
            let large_bytes = if dice.one_in(2) {
                enlarge(&mut dice, &mut case.trees)
            } else {
                0
            };
            if case.known(route).is_none() {
                let losses = (0..1 + usize::from(dice.one_in(4)))
                    .map(|_| loss(&mut dice, route, large_bytes))
                    .collect();
                return (case, losses);
            }
        }
    }

    fn drawn(dice: &mut Dice) -> Case {
        let count = 5 + dice.below(30);
        let source = random(dice, count);
        let dest = relative(dice, &source);
        let alt = relative(dice, &source);
        let mut case = Case {
            who: if dice.one_in(5) { Who::User } else { Who::Root },
            rules: (0..1 + dice.below(3)).map(|_| rule(dice, "- +")).collect(),
            list: Vec::new(),
            options: vec![dice.word(BASES).to_owned()],
            sources: Vec::new(),
            dest_name: dice.word("dst/ dst/ dst/ dst dst/sub/ new/ new"),
            trees: [source, if dice.one_in(8) { Vec::new() } else { dest }, alt],
        };
        if case.who == Who::User {
            // The messages about what this user may not do depend on the order of system calls.
            let entries = case
                .trees
                .iter_mut()
                .flatten()
                .filter(|entry| entry.extra == Extra::Owner);
            entries.for_each(|entry| entry.extra = Extra::None);
        }
        for _ in 0..dice.below(9) {
            let option = case.option(dice);
            if !case.options.contains(&option) {
                case.options.push(option);
            }
        }
        case.sources = case.operands(dice);
        case
    }

    fn option(&mut self, dice: &mut Dice) -> String {
        let class = match dice.below(20) {
            0..3 => DELETIONS,
            3..5 => BACKUPS,
            5..7 => return format!("{}{}", dice.word(RULES), dice.word(PATTERNS)),
            7 => MERGES,
            8 => ALTERNATES,
            9..11 => WRITING,
            11..13 => ATTRIBUTES,
            13..15 => SELECTION,
            15..17 => OUTPUT,
            17 => OTHERS,
            18 if self.list.is_empty() && dice.one_in(2) => return self.files_from(dice),
            _ => return format!("--protocol={}", 27 + dice.below(6)),
        };
        dice.word(class).to_owned()
    }

    /// Fills the list of names and returns the option that reads it.
    fn files_from(&mut self, dice: &mut Dice) -> String {
        let mut names: Vec<_> = self.trees[0]
            .iter()
            .map(|entry| entry.path.clone())
            .collect();
        names.retain(|name| !name.contains(&b'\n'));
        names.extend([&b"."[..], b"missing/x"].map(<[u8]>::to_vec));
        for _ in 0..1 + dice.below(6) {
            let (before, after) = *dice.pick(&[("", ""), ("", ""), ("", "/"), ("./", "")]);
            self.list
                .push([before.as_bytes(), &dice.pick(&names)[..], after.as_bytes()].concat());
        }
        "--files-from=list".to_owned()
    }

    /// Returns source arguments: the tree, or some overlapping parts of it.
    fn operands(&self, dice: &mut Dice) -> Vec<String> {
        let is_plain = |b: &u8| b.is_ascii_alphanumeric() || b"./_".contains(b);
        let plain = self.trees[0]
            .iter()
            .filter(|entry| entry.path.iter().all(is_plain));
        let plain: Vec<_> = plain
            .map(|entry| String::from_utf8_lossy(&entry.path))
            .collect();
        if !self.list.is_empty() || plain.is_empty() || dice.below(5) > 1 {
            return vec![
                dice.pick(&["src/", "src/", "src/", "src", "./src/"])
                    .to_string(),
            ];
        }
        let mut operand = || {
            let (path, end) = (dice.pick(&plain), dice.pick(&["", "", "/", "/."]));
            match dice.below(8) {
                0 => "src/".to_owned(),
                1 => format!("src/./{path}{end}"),
                2 => "src/missing".to_owned(),
                _ => format!("src/{path}{end}"),
            }
        };
        let first = [operand(), operand(), operand()];
        first[..1 + dice.below(3)].to_vec()
    }

    /// Returns why this combination is not compared.
    pub fn known(&self, route: Route) -> Option<&'static str> {
        KNOWN
            .iter()
            .find(|(_, is_met)| is_met(self, route))
            .map(|(why, _)| *why)
    }

    /// Returns whether each of `beginnings` begins a word, or is a letter of the base.
    fn has(&self, beginnings: &[&str]) -> bool {
        let base = &self.options[0].replace('a', "arlptgoD");
        let is_there = |begin: &&str| {
            let mut words = self.options.iter().chain(&self.sources);
            words.any(|word| word.starts_with(begin))
                || begin.len() == 2 && base.contains(&begin[1..])
        };
        beginnings.iter().all(is_there)
    }

    /// Returns whether old files are kept.
    fn is_backed_up(&self) -> bool {
        self.has(&["-b"]) || self.has(&["--backup"])
    }

    fn keeps_modes(&self) -> bool {
        self.has(&["-p"]) && !self.has(&["--no-perms"])
    }

    fn prints(&self) -> bool {
        OUTPUT.split_whitespace().any(|word| self.has(&[word]))
    }

    fn is_fuzzy(&self) -> bool {
        self.has(&["--fuzzy"]) || self.has(&["-yy"])
    }

    fn has_alternate(&self) -> bool {
        ALTERNATES.split_whitespace().any(|word| self.has(&[word]))
    }

    fn has_rules(&self) -> bool {
        self.has_modern_rules()
            || ["--exclude", "--include"]
                .iter()
                .any(|word| self.has(&[word]))
    }

    /// Returns whether there may be rules that older protocols cannot express.
    fn has_modern_rules(&self) -> bool {
        ["-f", "-F", "-C"]
            .iter()
            .any(|begin| self.options.iter().any(|word| word.starts_with(begin)))
    }

    /// Returns whether the protocol is one without items.
    fn is_early(&self) -> bool {
        self.has(&["--protocol=27"]) || self.has(&["--protocol=28"])
    }

    /// Returns whether the destination has a directory where the source has something else, or the reverse.
    fn has_clash(&self, is_dir_at_dest: bool) -> bool {
        let [source, dest, _] = &self.trees;
        let clashes = |there: &Entry, here: &Entry| {
            let are_dirs = [here, there].map(|entry| entry.kind == Kind::Dir);
            here.path == there.path && are_dirs == [!is_dir_at_dest, is_dir_at_dest]
        };
        dest.iter()
            .any(|there| source.iter().any(|here| clashes(there, here)))
    }

    /// Returns whether the destination may have a directory that is not empty where the source has something else. The
    /// names alone are compared, because arguments lead to different directories.
    fn replaces_full_dir(&self) -> bool {
        let [source, dest, _] = &self.trees;
        let others: Vec<&[u8]> = source
            .iter()
            .filter(|entry| entry.kind != Kind::Dir)
            .filter_map(|entry| entry.path.rsplit(|&byte| byte == b'/').next())
            .collect();
        dest.iter().any(|entry| {
            let mut parents = entry.path.split(|&byte| byte == b'/').rev().skip(1);
            parents.any(|name| others.contains(&name))
        })
    }

    /// Returns whether the destination has a link or fifo where the source has a file.
    fn replaces_other(&self) -> bool {
        let [source, dest, _] = &self.trees;
        let is_other = |there: &&Entry| matches!(there.kind, Kind::Symlink(_) | Kind::Fifo);
        dest.iter()
            .filter(is_other)
            .any(|there| source.iter().any(|here| here.path == there.path))
    }

    /// Returns all cases that lack one part of this one, large parts first.
    pub fn smaller(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        let mut less = |change: &dyn Fn(&mut Case)| {
            let mut case = self.clone();
            change(&mut case);
            case.trees = case.trees.map(consistent);
            if case != *self {
                cases.push(case);
            }
        };
        (1..self.options.len()).for_each(|at| less(&|case| drop(case.options.remove(at))));
        for base in ["-a", "-r"].iter().filter(|_| self.options[0].len() > 2) {
            less(&|case| case.options[0] = base.to_string());
        }
        less(&|case| case.who = Who::Root);
        less(&|case| case.dest_name = "dst/");
        (1..self.sources.len()).for_each(|at| less(&|case| drop(case.sources.remove(at))));
        (1..self.sources.len()).for_each(|at| less(&|case| drop(case.sources.remove(at - 1))));
        (1..self.list.len()).for_each(|at| less(&|case| drop(case.list.remove(at))));
        (0..self.rules.len()).for_each(|at| less(&|case| drop(case.rules.remove(at))));
        for (tree, len) in self.trees.iter().map(Vec::len).enumerate().rev() {
            for size in [len, len.div_ceil(2), len.div_ceil(4), 1].map(|size| size.max(1)) {
                let parts = (0..len).step_by(size).map(|at| at..len.min(at + size));
                parts.for_each(|part| less(&|case| drop(case.trees[tree].drain(part.clone()))));
            }
        }
        cases
    }
}

/// Draws a loss of a connection that carries about this much content.
fn loss(dice: &mut Dice, route: Route, large_bytes: usize) -> Loss {
    let with_content = matches!(route, Route::Push(_));
    let to_server = with_content != dice.one_in(4);
    let magnitude = 1 << (7 + dice.below(8));
    let after_bytes = match to_server == with_content && large_bytes > 0 && dice.one_in(2) {
        true => dice.below(large_bytes),
        false => magnitude + dice.below(magnitude),
    };
    let kind = match dice.below(16) {
        0..3 => LossKind::Link(Cut::End),
        3..6 => LossKind::Link(Cut::Reset),
        6..9 => LossKind::Link(Cut::AtClient),
        9 => LossKind::Link(Cut::ToServer),
        10 => LossKind::Link(Cut::ToClient),
        11..14 => LossKind::Session,
        _ => LossKind::Server,
    };
    // Of these, only silence ends a QUIC connection, which takes seconds.
    let is_slow = route.is_by_quic() && matches!(kind, LossKind::Link(_)) && !dice.one_in(4);
    let kind = if is_slow { LossKind::Session } else { kind };
    Loss {
        to_server,
        after_bytes,
        kind,
    }
}

impl std::fmt::Display for Case {
    /// Prints the case as the code of a test.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (name, tree) in TREES.iter().zip(&self.trees) {
            let items: Vec<String> = tree.iter().map(Entry::to_string).collect();
            writeln!(f, "  w.tree({name:?}, {:?});", items.join(" "))?;
        }
        for (name, lines) in [("list", &self.list), ("rules", &self.rules)] {
            writeln!(f, "  w.file({name:?}, \"{}\");", text(lines).escape_ascii())?;
        }
        writeln!(
            f,
            "  w.agree_paths(&{:?}, &{:?} + {:?}); as {:?}",
            self.options, self.sources, self.dest_name, self.who
        )
    }
}
