//! `sparsync plan` and `sparsync apply`: what is applied ends as the run, and nothing else happens.

mod renamed;

use crate::faults::{Stage, Trees, both, write};
use crate::json::check_line;
use crate::kit::{
    Acl, HashedTree, Recorded, World, calls_with_faults, diff, oracle, report_skip, synctest,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

const NO_CLIENT: &str = "the client is rsync, which has no such command";
const NO_PEER: &str = "both ends must be a sparsync";

/// One row: the options with which plan and apply end as rsync.
macro_rules! ends_as_the_run {
    ($name:ident, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            varied(&w).agree_by_plan(&[$($option),+]);
        });
    };
}

/// Leaves out the routes on which no plan is applied.
fn applied_here(w: &World) -> &World {
    w.not_served(NO_CLIENT).not_with_stock(NO_PEER);
    w
}

/// Trees with every kind of action.
fn varied(w: &World) -> &World {
    applied_here(w).source(
        "new*3000 changed=after mode%600 time@5 same l->a link->new d/new d/kept deep/a/b/c empty/%750 kind/x \
         was_dir=file turned->there big*300000 skip.o",
    )
    .dest(
        "changed=before mode%644 time@9 same link->old d/kept d/gone kind=file was_dir/in was_dir/deep/x turned=file \
         big*299999 extra/f extra/deep/g lone other.o",
    )
}

ends_as_the_run!(archive, ["-a"]);
ends_as_the_run!(deleting, ["-a", "--delete"]);
ends_as_the_run!(deleting_before, ["-a", "--delete-before"]);
ends_as_the_run!(deleting_with_delay, ["-a", "--delete-delay"]);
ends_as_the_run!(deleting_after, ["-a", "--delete-after"]);
ends_as_the_run!(
    deleting_what_is_excluded,
    ["-a", "--delete-excluded", "--exclude=*.o"]
);
ends_as_the_run!(excluding, ["-a", "--delete", "--exclude=*.o"]);
ends_as_the_run!(
    protecting,
    ["-a", "--delete", "--filter=P g", "--filter=P /lone"]
);
ends_as_the_run!(checksums, ["-ac", "--delete"]);
ends_as_the_run!(all_again, ["-aI", "--delete"]);
ends_as_the_run!(deltas, ["-a", "--no-whole-file"]);
ends_as_the_run!(existing, ["-a", "--existing", "--delete"]);
ends_as_the_run!(missing_only, ["-a", "--ignore-existing"]);
ends_as_the_run!(update, ["-au"]);
ends_as_the_run!(pruning, ["-am", "--delete"]);
ends_as_the_run!(without_perms, ["-rlt", "--delete", "--chmod=D750"]);
ends_as_the_run!(relative, ["-aR"]);
ends_as_the_run!(forced, ["-a", "--force"]);
ends_as_the_run!(at_most, ["-a", "--delete", "--max-delete=2"]);

/// Trees that differ in attributes and ACLs.
fn with_attributes(w: &World) -> &World {
    varied(w).needs_xattrs();
    for (tree, value) in [("src", "new"), ("dst", "old")] {
        w.build(tree, |t| {
            t.file("one", "1").xattr("user.one", value);
            t.file("two", "2")
                .xattr("user.one", "same")
                .xattr(&format!("user.{value}"), "");
            t.dir("sub").xattr("user.dir", value);
            t.file("sub/lone", value).xattr("user.lone", "x");
        });
    }
    w.build("src", |t| {
        t.file("fresh", "").xattr("user.x", "y");
        t.file("listed", "l").acl(READ_FOR_99);
        t.dir("for_99").acl(READ_FOR_99).default_acl(READ_FOR_99);
    });
    w.build("dst", |t| {
        t.file("listed", "l");
        t.file("unlisted", "l").acl(READ_FOR_99);
        t.dir("for_99");
    });
    w
}

const READ_FOR_99: &[Acl] = &[
    Acl::Owner(7),
    Acl::User(99, 5),
    Acl::OwnGroup(5),
    Acl::Mask(5),
    Acl::Other(0),
];

synctest!(extended_attributes, |w: World| {
    with_attributes(&w).agree_by_plan(&["-aX", "--delete"]);
});

synctest!(acls, |w: World| {
    with_attributes(&w).agree_by_plan(&["-aA", "--delete"]);
});

synctest!(attributes_and_acls, |w: World| {
    with_attributes(&w).agree_by_plan(&["-aAX"]);
});

synctest!(an_attribute_that_has_changed_since_is_spared, |w: World| {
    applied_here(&w).needs_xattrs();
    for tree in ["src", "dst"] {
        w.build(tree, |t| {
            t.file("a", "a").xattr("user.one", tree);
            t.file("b", "b").xattr("user.one", tree);
            t.file("c", "c").xattr("user.one", tree);
        });
    }
    assert_eq!(w.plan(&["-aX"]).exit, 0);
    let change = |path: &str, name: &str| {
        let path = w.tested().join(path);
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&path, name, b"by another", flags).unwrap();
    };
    change("dst/a", "user.one");
    change("src/b", "user.two");
    let applied = w.apply(&[]);
    assert_eq!(applied.exit, 23, "{}", applied.stderr);
    for (end, path) in [("destination", "a"), ("source", "b")] {
        let line = format!("because the {end} has changed since the plan: \"{path}\"");
        assert!(applied.stderr.contains(&line), "{}", applied.stderr);
    }
    let value = |path: &str| {
        let mut value = [0; 64];
        let len = rustix::fs::getxattr(w.tested().join(path), "user.one", &mut value).unwrap();
        value[..len].to_vec()
    };
    assert_eq!(value("dst/a"), b"by another");
    assert_eq!(value("dst/b"), b"dst");
    assert_eq!(value("dst/c"), b"src");
});

// ── backups ─────────────────────────────────────────────────────────────────────────────────────

/// Trees of which each kind of entry is replaced or deleted, some with an older backup. `suffix`: of backups.
fn backed_up<'w>(w: &'w World, suffix: &str) -> &'w World {
    let older = |names: &str| {
        let names = names.split(' ').map(|name| format!("{name}{suffix}"));
        names.collect::<Vec<_>>().join(" ")
    };
    applied_here(w)
        .source("a=after b=after c=same mode%600 link->new kind=file turned->there d/e=after is_dir/x new big*300000")
        .dest(
            "a=before b=before c=same mode%644 link->old kind->file turned=file d/e=before d/gone is_dir=file gone lone \
             big*299999 deep/er/x deep/y out->../../x",
        )
        .dest(&older("b link gone d/e deep/er/x"))
}

/// One row: the options with which plan and apply end as rsync, and the suffix of the backups.
macro_rules! backs_up_as_the_run {
    ($name:ident, $suffix:literal, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            backed_up(&w, $suffix).agree_by_plan(&[$($option),+]);
        });
    };
}

backs_up_as_the_run!(backups, "~", ["-ab", "--delete"]);
backs_up_as_the_run!(
    backups_before_deletions_with_a_suffix,
    ".old",
    ["-abI", "--suffix=.old", "--delete-before"]
);
backs_up_as_the_run!(
    backups_at_the_end,
    "~",
    ["-ab", "--delay-updates", "--delete-after"]
);
backs_up_as_the_run!(backups_without_deletions, "~", ["-ab"]);
backs_up_as_the_run!(
    backups_without_unsafe_links,
    "~",
    ["-ab", "--safe-links", "--delete"]
);
backs_up_as_the_run!(
    backups_in_another_directory,
    "~",
    ["-ab", "--backup-dir=../bak", "--delete"]
);
backs_up_as_the_run!(
    backups_with_a_suffix_in_another_directory,
    "~",
    [
        "-a",
        "--backup",
        "--backup-dir=../bak/er",
        "--suffix=.1",
        "--delete-delay"
    ]
);
backs_up_as_the_run!(
    backups_in_a_directory_of_the_destination,
    "~",
    ["-ab", "--backup-dir=.bak", "--exclude=/.bak", "--delete"]
);
synctest!(replaced_backups_in_another_directory, |w: World| {
    backed_up(&w, "~").tree("bak", "a=older link=older d/e->older is_dir gone deep/er/x");
    w.agree_by_plan(&["-ab", "--backup-dir=../bak", "--delete"]);
});

synctest!(
    a_backup_whose_place_has_changed_since_is_not_made,
    |w: World| {
        let names = "a b c d e gone gone2 gone3";
        let with = |text: &str| {
            let files = names.split(' ').map(|name| format!("{name}={text}"));
            files.collect::<Vec<_>>().join(" ")
        };
        applied_here(&w)
            .source("a=1 b=1 c=1 d=1 e=1")
            .dest(&with("00"))
            .dest("a~=older b~=older gone~=older");
        assert_eq!(w.plan(&["-ab", "--delete"]).exit, 0);
        let dst = w.tested().join("dst");
        // An older backup that is gone is not replaced, so nothing is lost.
        std::fs::remove_file(dst.join("a~")).unwrap();
        for name in ["b~", "c~", "gone~", "gone2~"] {
            std::fs::write(dst.join(name), "by another").unwrap();
        }
        std::fs::create_dir(dst.join("d~")).unwrap();

        let mut left = None;
        for _ in 0..2 {
            let applied = w.apply(&["-i"]);
            assert_eq!(applied.exit, 23, "{}", applied.stderr);
            for name in ["b", "c", "d", "gone", "gone2"] {
                let line = format!(
                    "because the place of its backup has changed since the plan: \"{name}\""
                );
                assert!(applied.stderr.contains(&line), "{line}\n{}", applied.stderr);
            }
            assert_eq!(
                applied.stderr.matches("left alone").count(),
                5,
                "{}",
                applied.stderr
            );
            let text = |name: &str| std::fs::read_to_string(dst.join(name)).ok();
            for (name, wanted) in [
                ("a", Some("1")),
                ("a~", Some("00")),
                ("e", Some("1")),
                ("e~", Some("00")),
                ("gone3", None),
                ("gone3~", Some("00")),
            ] {
                assert_eq!(text(name).as_deref(), wanted, "{name}");
            }
            for name in ["b", "c", "d", "gone", "gone2"] {
                assert_eq!(text(name).as_deref(), Some("00"), "{name}");
            }
            for name in ["b~", "c~", "gone~", "gone2~"] {
                assert_eq!(text(name).as_deref(), Some("by another"), "{name}");
            }
            let tree = w.left_by_us();
            if let Some(left) = left.replace(tree.clone()) {
                assert_eq!(diff::trees(&left, &tree), None);
            }
        }
    }
);

synctest!(
    a_name_of_a_group_without_a_place_for_its_backup_is_spared,
    |w: World| {
        applied_here(&w)
            .source("a=1 b==a c=2 d==c")
            .dest("a=00 b=00 c=00 d=00");
        assert_eq!(w.plan(&["-aHb"]).exit, 0);
        let dst = w.tested().join("dst");
        std::fs::write(dst.join("b~"), "by another").unwrap();
        let applied = w.apply(&[]);
        assert_eq!(applied.exit, 23, "{}", applied.stderr);
        for name in ["a", "b"] {
            let line =
                format!("because the place of its backup has changed since the plan: \"{name}\"");
            assert!(applied.stderr.contains(&line), "{}", applied.stderr);
        }
        let text = |name: &str| std::fs::read_to_string(dst.join(name)).ok();
        for (name, wanted) in [
            ("a", "00"),
            ("b", "00"),
            ("b~", "by another"),
            ("c", "2"),
            ("d~", "00"),
        ] {
            assert_eq!(text(name).as_deref(), Some(wanted), "{name}");
        }
        assert_eq!(text("a~"), None);
    }
);

synctest!(
    a_backup_that_is_an_entry_of_the_source_is_refused,
    |w: World| {
        applied_here(&w)
            .source("a=after a~=own d/b=after d/b~ same same~")
            .dest("a=before d/b=before same");
        for (options, exit) in [
            (&["-ab"][..], 3),
            (&["-ab", "--delete", "--exclude=/a"], 3),
            (&["-ab", "--exclude=a", "--exclude=b~"], 0),
            (&["-ab", "--suffix=.old"], 0),
            (&["-ab", "--backup-dir=bak"], 0),
        ] {
            let planned = w.plan(options);
            assert_eq!(planned.exit, exit, "{options:?}: {}", planned.stderr);
            if exit != 0 {
                let words = "is an entry of the source and the name of a backup: a plan cannot record what becomes of it";
                assert!(planned.stderr.contains(words), "{}", planned.stderr);
            }
        }
    }
);

// Applied again, the plan would make another directory in the first one.
synctest!(new_name_of_an_empty_directory_is_refused, |w: World| {
    applied_here(&w).source("e/ f/x");
    for (from, to, exit) in [
        ("src/e", "dst/e", 3),
        ("src/e", "dst/new", 3),
        ("src/e", "dst/new/", 0),
        ("src/e/", "dst/new", 0),
        ("src/f", "dst/new", 0),
        ("src/f/x", "dst/new", 0),
    ] {
        w.dest("");
        let planned = w.try_plan(&["-a"], &[from, to]).unwrap();
        assert_eq!(planned.exit, exit, "{from} {to}: {}", planned.stderr);
        let is_refused = planned
            .stderr
            .contains("is the new name of an empty directory");
        assert_eq!(is_refused, exit == 3, "{}", planned.stderr);
    }
});

ends_as_the_run!(access_times, ["-aU"]);
ends_as_the_run!(partial_dir, ["-a", "--partial-dir=.part", "--delete"]);
ends_as_the_run!(delayed_updates, ["-a", "--delay-updates", "--delete"]);

synctest!(fake_super, |w: World| {
    varied(&w).needs_xattrs();
    w.agree_by_plan(&["-a", "--fake-super"]);
});

/// One row: a kind of alternate tree.
macro_rules! alternates {
    ($name:ident, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            varied(&w).tree(
                "alt",
                "new*3000 changed=after mode%600 big*300000 d/new d/kept deep/a/b/c=other link->new same time@5",
            );
            w.agree_by_plan(&[$($option),+]);
        });
    };
}

alternates!(
    links_of_an_alternate_tree,
    ["-a", "--delete", "--link-dest=../alt"]
);
alternates!(
    copies_of_an_alternate_tree,
    ["-a", "--delete", "--copy-dest=../alt"]
);
synctest!(clones_of_an_alternate_tree, |w: World| {
    w.not_served("an rsync has no such option");
    w.mask_with(crate::clone_dest::without_note);
    varied(&w).tree(
        "alt",
        "new*3000 changed=after mode%600 big*300000 d/new d/kept",
    );
    w.agree_by_plan(&["-a", "--delete", "--clone-dest=../alt"]);
});

alternates!(
    what_an_alternate_tree_has_is_left_out,
    ["-a", "--delete", "--compare-dest=../alt"]
);
alternates!(
    equal_links_of_an_alternate_tree,
    ["-ac", "--link-dest=../alt"]
);
alternates!(
    all_again_with_an_alternate_tree,
    ["-aI", "--compare-dest=../alt"]
);

/// Trees with files that have several names: none of these exists, some do, all do, and they are one file or several.
fn linked(w: &World) -> &World {
    applied_here(w)
        .source(
            "a b==a c==a d/e==a x/one two==x/one same same2==same half half2==half changed=after changed2==changed \
             parted=p parted2==parted joined=1 joined2=2 mode%600 mode2==mode lone to=new to2==to to3==to",
        )
        .dest(
            "b=older same same2==same half changed=before changed2==changed parted=p parted2=p joined=1 joined2==joined \
             mode%644 mode2==mode gone gone2==gone d/gone3==gone to->nowhere to2=x to3=old",
        )
}

/// One row: the options with which plan and apply end as rsync on those trees.
macro_rules! links_as_the_run {
    ($name:ident, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            linked(&w).agree_by_plan(&[$($option),+]);
        });
    };
}

links_as_the_run!(hard_links, ["-aH"]);
links_as_the_run!(backups_of_hard_links, ["-aHb", "--delete"]);
links_as_the_run!(
    backups_of_hard_links_in_another_directory,
    ["-aHb", "--backup-dir=../bak", "--delete-before", "--force"]
);

links_as_the_run!(hard_links_and_deletions, ["-aH", "--delete"]);
links_as_the_run!(all_links_again, ["-aHI", "--delete"]);
links_as_the_run!(
    hard_links_and_deletions_before,
    ["-aHI", "--delete-before", "--force"]
);
links_as_the_run!(
    hard_links_with_delay,
    ["-aHc", "--delete-after", "--delay-updates"]
);
links_as_the_run!(some_hard_links, ["-aH", "--exclude=b", "--update"]);

synctest!(hard_links_of_several_sources, |w: World| {
    linked(&w).tree("more", "a=other z y==z d/w==z");
    w.try_agree_by_plan(&["-aH"], &["src/", "more/", "dst/"], Recorded::Wholly)
        .unwrap();
});

synctest!(hard_links_that_have_changed_since_are_spared, |w: World| {
    applied_here(&w)
        .source("a=1 b==a c=2 d==c e=3 f==e g=4 h==g i j==i k l==k m==k n o==n p=6 q")
        .dest("a=00 c=00 e=00 i j==i k l==k p=00");
    assert_eq!(w.plan(&["-aH"]).exit, 0);
    let top = w.tested();
    let link = |from: &str, to: &str| std::fs::hard_link(top.join(from), top.join(to)).unwrap();
    let parted = |name: &str| {
        let path = top.join(name);
        let mtime = std::fs::metadata(&path).unwrap().modified().unwrap();
        let text = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, text).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(mtime).unwrap();
    };
    // What the destination had, and which names the file has.
    std::fs::write(top.join("dst/a"), "by another").unwrap();
    link("src/c", "src/unplanned");
    parted("src/f");
    // Nothing was to be done about these, and nothing is.
    parted("dst/j");
    parted("dst/l");
    link("src/q", "src/q2");
    // There was nothing.
    std::fs::write(top.join("dst/n"), "by another").unwrap();

    let applied = w.apply(&["-i"]);
    assert_eq!(applied.exit, 23, "{}", applied.stderr);
    for (end, names) in [("destination", "a b m n o"), ("source", "c d e f q")] {
        for name in names.split(' ') {
            let line = format!("because the {end} has changed since the plan: \"{name}\"");
            assert!(applied.stderr.contains(&line), "{line}\n{}", applied.stderr);
        }
    }
    assert_eq!(
        applied.stderr.matches("left alone").count(),
        10,
        "{}",
        applied.stderr
    );
    let text = |name: &str| std::fs::read_to_string(top.join("dst").join(name)).ok();
    let inode = |name: &str| {
        std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(top.join("dst").join(name)).unwrap())
    };
    assert_eq!(text("a").as_deref(), Some("by another"));
    for (name, kept) in [("c", "00"), ("e", "00"), ("p", "6"), ("g", "4")] {
        assert_eq!(text(name).as_deref(), Some(kept), "{name}");
    }
    for missing in ["b", "d", "f", "m", "o", "q", "unplanned", "q2"] {
        assert_eq!(text(missing), None, "{missing}");
    }
    assert_eq!(inode("g"), inode("h"));
    assert_ne!(inode("i"), inode("j"));
    assert_ne!(inode("k"), inode("l"));
});

/// A name of a file stays taken, and the other ones are made, with these options.
#[track_caller]
fn makes_the_other_names(w: &World, options: &[&str]) {
    let dest = w.tested().join("dst");
    applied_here(w)
        .source("b=1 d/x2==b x==b z/y==b")
        .dest("x/in");
    let planned = w.plan(options);
    assert_eq!(planned.exit, 23, "{}", planned.stderr);
    let words = "could not make way for new regular file: x";
    assert!(planned.stderr.contains(words), "{}", planned.stderr);
    for _ in 0..2 {
        let applied = w.apply(&["-i"]);
        assert_eq!(applied.exit, 23, "{}", applied.stderr);
        assert!(!applied.stderr.contains("left alone"), "{}", applied.stderr);
        let inode = |name: &str| {
            let found = std::fs::metadata(dest.join(name));
            std::os::unix::fs::MetadataExt::ino(&found.expect(name))
        };
        assert_eq!([inode("b"), inode("d/x2")], [inode("z/y"); 2]);
        assert!(dest.join("x/in").exists());
    }
}

synctest!(a_name_that_is_taken_keeps_no_other_name, |w: World| {
    makes_the_other_names(&w, &["-aH"]);
});

synctest!(
    a_name_that_stays_protected_keeps_no_other_name,
    |w: World| {
        makes_the_other_names(&w, &["-aH", "--delete", "--filter=P in"]);
    }
);

synctest!(
    names_that_have_been_taken_since_keep_the_others,
    |w: World| {
        applied_here(&w)
            .source("b=1 x==b c=2 y==c")
            .dest("x=1 y/in");
        assert_eq!(w.plan(&["-aH"]).exit, 23);
        let dest = w.tested().join("dst");
        // One of the names could be made when the plan was made, and the other one could not.
        std::fs::remove_file(dest.join("x")).unwrap();
        std::fs::create_dir_all(dest.join("x/in")).unwrap();
        std::fs::remove_dir_all(dest.join("y")).unwrap();
        let applied = w.apply(&[]);
        assert_eq!(applied.exit, 23, "{}", applied.stderr);
        for name in ["b", "c"] {
            let line = format!("because the destination has changed since the plan: \"{name}\"");
            assert!(applied.stderr.contains(&line), "{line}\n{}", applied.stderr);
            assert!(!dest.join(name).exists(), "{name}");
        }
    }
);

/// One row: the options with which plan and apply end as rsync, where the destination has several names of one file whose
/// attributes change.
macro_rules! names_of_one_file {
    ($name:ident, $source:expr, $dest:expr, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            applied_here(&w).source($source).dest($dest);
            w.agree_by_plan(&[$($option),+]);
        });
    };
}

names_of_one_file!(
    other_names_of_one_file_are_deleted_after,
    "a=x%600 d/c=x%600",
    "a=x%644 b==a d/c==a d/e==a",
    ["-a", "--delete-after"]
);
names_of_one_file!(
    other_names_of_one_file_are_deleted_with_delay,
    "a=x%600 d/c=x%600",
    "a=x%644 b==a d/c==a d/e==a",
    ["-a", "--delete-delay"]
);
names_of_one_file!(
    other_names_of_one_file_are_deleted,
    "d/a=x%600 e/f",
    "d/a=x%644 e/f z/b==d/a",
    ["-a", "--delete"]
);
names_of_one_file!(
    other_names_of_one_file_that_becomes_executable_are_deleted,
    "a=x%700",
    "a=x%640 b==a",
    ["-rltE", "--delete-after"]
);
names_of_one_file!(
    other_names_of_one_file_are_deleted_with_hard_links,
    "a=x%600 c==a",
    "a=x%644 b==a c==a",
    ["-aH", "--delete-after"]
);
names_of_one_file!(
    names_of_one_file_get_several_modes,
    "a=x%600 b=x%640 d/c=x%604",
    "a=x%644 b==a d/c==a",
    ["-a"]
);

synctest!(other_names_of_one_file_with_an_owner_are_deleted, as root, |w: World| {
    applied_here(&w).source("a=x%600").dest("a=x%644 b==a");
    w.agree_by_plan(&["-a", "--chown=1:1", "--delete-after"]);
});

/// Applies a plan for three names of one file after it has got a mode. Returns whether all names were left alone, and
/// their mode afterwards.
#[track_caller]
fn names_after_mode(w: &World, found: u32) -> (bool, u32) {
    let dest = w.tested().join("dst");
    applied_here(w)
        .source("a=x%600 d/c=x%640")
        .dest("a=x%644 b==a d/c==a");
    assert_eq!(w.plan(&["-a", "--delete-after"]).exit, 0);
    let mode = std::fs::Permissions::from_mode(found);
    std::fs::set_permissions(dest.join("a"), mode).unwrap();
    let applied = w.apply(&[]);
    let is_left = applied.exit == 23;
    assert!(is_left || applied.exit == 0, "{}", applied.stderr);
    for name in ["a", "b", "d/c"] {
        let line = format!("because the destination has changed since the plan: \"{name}\"");
        let has_line = applied.stderr.contains(&line);
        assert_eq!(has_line, is_left, "{line}\n{}", applied.stderr);
    }
    assert_eq!(dest.join("b").exists(), is_left);
    let mode = std::fs::metadata(dest.join("d/c")).unwrap().permissions();
    (is_left, mode.mode() & 0o777)
}

synctest!(
    names_of_one_file_may_have_attributes_of_others,
    |w: World| {
        // This is what an interrupted `apply` leaves.
        assert_eq!(names_after_mode(&w, 0o600), (false, 0o640));
    }
);

synctest!(
    names_of_one_file_with_unplanned_attributes_are_spared,
    |w: World| {
        assert_eq!(names_after_mode(&w, 0o666), (true, 0o666));
    }
);

/// Gives a file other content of the same length, but not another time.
fn rewrite(path: &Path, text: &str) {
    let mtime = std::fs::metadata(path).unwrap().modified().unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    std::io::Write::write_all(&mut &file, text.as_bytes()).unwrap();
    file.set_modified(mtime).unwrap();
}

synctest!(
    with_checksums_each_change_of_content_is_spared,
    |w: World| {
        applied_here(&w)
            .source("a=after new=after big*300000 adjusted=after%600 c=after e=after")
            // Other names hide a change of the content from the time of the last change.
            .dest(
                "a=older big*299999 adjusted=after%644 c=older c2==c d=other d2==d e=older e2==e",
            );
        assert_eq!(w.plan(&["-ac", "--exclude=/d", "--exclude=[a-e]2"]).exit, 0);
        let top = w.tested();
        for (path, text) in [
            ("src/a", "AFTER"),
            ("src/new", "AFTER"),
            ("src/big", "BIG"),
            ("src/adjusted", "AFTER"),
            ("dst/c", "OLDER"),
        ] {
            rewrite(&top.join(path), text);
        }
        for _ in 0..2 {
            let applied = w.apply(&[]);
            assert_eq!(applied.exit, 23, "{}", applied.stderr);
            for (end, name) in [
                ("source", "a"),
                ("source", "new"),
                ("source", "big"),
                ("source", "adjusted"),
                ("destination", "c"),
            ] {
                let line = format!("because the {end} has changed since the plan: \"{name}\"");
                assert!(applied.stderr.contains(&line), "{line}\n{}", applied.stderr);
            }
            assert_eq!(
                applied.stderr.matches("left alone").count(),
                5,
                "{}",
                applied.stderr
            );
            let text = |name: &str| std::fs::read_to_string(top.join("dst").join(name)).ok();
            for (name, wanted) in [
                ("a", Some("older")),
                ("new", None),
                ("c", Some("OLDER")),
                ("e", Some("after")),
            ] {
                assert_eq!(text(name).as_deref(), wanted, "{name}");
            }
            let adjusted = std::fs::metadata(top.join("dst/adjusted")).unwrap();
            assert_eq!(adjusted.permissions().mode() & 0o777, 0o644);
            assert_eq!(
                std::fs::metadata(top.join("dst/big")).unwrap().len(),
                299_999
            );
        }
    }
);

// A file whose content has changed keeps its length and time.
synctest!(
    a_change_that_left_size_and_time_alone_is_spared,
    |w: World| {
        applied_here(&w)
            .source("a=after b=after")
            .dest("a=before b=before gone=before");
        assert_eq!(w.plan(&["-a", "--delete"]).exit, 0);
        for name in ["a", "gone"] {
            rewrite(&w.tested().join("dst").join(name), "BEFORE");
        }
        let applied = w.apply(&[]);
        assert_eq!(applied.exit, 23, "{}", applied.stderr);
        let text = |name: &str| std::fs::read_to_string(w.tested().join("dst").join(name)).unwrap();
        assert_eq!(
            [text("a"), text("b"), text("gone")],
            ["BEFORE", "after", "BEFORE"]
        );
    }
);

synctest!(similar_files, |w: World| {
    applied_here(&w)
        .source("report-2*30000 d/a")
        .dest("report-1*30000 gone d/a=older");
    w.agree_by_plan(&["-ay", "--no-whole-file", "--delete-after"]);
});

synctest!(temporary_directory, |w: World| {
    varied(&w).tree("tmp", "").tree("dst/.tmp", "");
    w.agree_by_plan(&["-a", "--delete", "--exclude=.tmp", "--temp-dir=.tmp"]);
});

synctest!(implied_directories, |w: World| {
    varied(&w).tree("src", "d2/e%700/f").dest("d2%711/old");
    let operands = ["src/./deep/a/b", "src/./d2/e/f", "src/./d/new", "dst/"];
    for options in [&["-aR"][..], &["-aR", "--no-implied-dirs"]] {
        w.try_agree_by_plan(options, &operands, Recorded::Wholly)
            .unwrap();
    }
});

synctest!(missing_arguments_are_deleted, |w: World| {
    varied(&w);
    let operands = ["src/new", "src/lone", "src/extra", "src/d", "dst/"];
    w.try_agree_by_plan(
        &["-a", "--delete-missing-args", "--force"],
        &operands,
        Recorded::Wholly,
    )
    .unwrap();
});

synctest!(a_missing_destination_is_created, |w: World| {
    applied_here(&w).source("a d/b");
    w.try_agree_by_plan(&["-a"], &["src/", "new/"], Recorded::Wholly)
        .unwrap();
});

synctest!(several_sources, |w: World| {
    applied_here(&w)
        .source("a d/b")
        .tree("two", "a=other d/c")
        .dest("old d/x");
    w.try_agree_by_plan(
        &["-a", "--delete"],
        &["src/", "two/", "dst/"],
        Recorded::Wholly,
    )
    .unwrap();
});

synctest!(a_list_of_files, |w: World| {
    varied(&w).file("list", "new\nd/new\ndeep/a\n");
    w.only_local("a list of the client");
    w.agree_by_plan(&["-a", "--files-from=list"]);
});

synctest!(single_files, |w: World| {
    applied_here(&w).source("a b").dest("a=old");
    w.try_agree_by_plan(&["-a"], &["src/a", "src/b", "dst/"], Recorded::Wholly)
        .unwrap();
});

synctest!(what_has_changed_since_is_left_alone, |w: World| {
    varied(&w);
    let planned = w.plan(&["-a", "--delete"]);
    assert_eq!(planned.exit, 0, "{}", planned.stderr);
    let top = w.tested();
    let put = |path: &str, text: &str| std::fs::write(top.join(path), text).unwrap();
    put("dst/changed", "by another");
    put("dst/new", "by another");
    put("dst/extra/deep/unplanned", "");
    put("dst/d/gone", "by another");
    put("dst/unplanned", "");
    put("src/d/new", "newer");
    put("src/unplanned", "");
    std::fs::remove_file(top.join("src/skip.o")).unwrap();
    std::fs::remove_file(top.join("dst/lone")).unwrap();
    std::fs::remove_file(top.join("dst/mode")).unwrap();

    let applied = w.apply(&["-i"]);
    assert_eq!(applied.exit, 23, "{}", applied.stderr);
    let left = |end: &str, path: &str| {
        format!("sparsync: left alone, because the {end} has changed since the plan: \"{path}\"")
    };
    for (end, path) in [
        ("destination", "changed"),
        ("destination", "new"),
        ("destination", "extra/deep"),
        ("destination", "extra"),
        ("destination", "d/gone"),
        ("destination", "mode"),
        ("source", "d/new"),
        ("source", "skip.o"),
    ] {
        let line = left(end, path);
        assert!(applied.stderr.contains(&line), "{line}\n{}", applied.stderr);
    }
    assert_eq!(applied.stderr.matches("left alone").count(), 8);
    let text = |path: &str| std::fs::read_to_string(top.join(path)).ok();
    assert_eq!(text("dst/changed").as_deref(), Some("by another"));
    assert_eq!(text("dst/new").as_deref(), Some("by another"));
    assert_eq!(text("dst/d/gone").as_deref(), Some("by another"));
    assert_eq!(text("dst/unplanned").as_deref(), Some(""));
    assert_eq!(text("src/d/new").as_deref(), Some("newer"));
    for missing in [
        "d/new",
        "unplanned.o",
        "mode",
        "extra/f",
        "extra/deep/g",
        "other.o",
    ] {
        assert_eq!(text(&format!("dst/{missing}")), None, "{missing}");
    }
    assert_eq!(text("dst/was_dir").as_deref(), Some("file"));
    assert!(text("dst/extra/deep/unplanned").is_some());
});

synctest!(deletions_can_be_left_out, |w: World| {
    varied(&w);
    w.plan(&["-a", "--delete"]);
    let applied = w.apply(&["--without-deletions"]);
    // The directory in the way of a file stays, so the file is not created.
    assert_eq!(applied.exit, 23, "{}", applied.stderr);
    assert!(
        applied
            .stderr
            .contains("could not make way for new regular file: was_dir")
    );
    for path in [
        "extra/deep/g",
        "lone",
        "d/gone",
        "was_dir/in",
        "new",
        "deep/a/b/c",
    ] {
        assert!(w.tested().join("dst").join(path).exists(), "{path}");
    }
    // The rest is done now.
    assert_eq!(w.apply(&[]).exit, 0);
    assert!(!w.tested().join("dst/lone").exists());
});

synctest!(a_dry_run_of_a_plan_changes_nothing, |w: World| {
    varied(&w);
    w.plan(&["-a", "--delete"]);
    let before = w.left_by_us();
    let applied = w.apply(&["-ni"]);
    assert_eq!(applied.exit, 0, "{}", applied.stderr);
    assert!(
        applied.stdout.contains("*deleting   extra/deep/g\n"),
        "{}",
        applied.stdout
    );
    assert_eq!(diff::trees(&before, &w.left_by_us()), None);
});

synctest!(an_rsync_at_the_other_end_is_refused, |w: World| {
    w.not_served(NO_CLIENT).source("a").dest("b");
    let planned = w.plan(&["-a"]);
    if w.route().is_stock() {
        assert_eq!(planned.exit, 4, "{}", planned.stderr);
        let what = if w.route().is_daemon() {
            "the daemon speaks rsync's protocol for this module"
        } else {
            "the other end is an rsync"
        };
        let words = format!("sparsync plan: {what}: nothing was changed");
        assert!(planned.stderr.contains(&words), "{}", planned.stderr);
    } else {
        assert_eq!(planned.exit, 0, "{}", planned.stderr);
    }
});

// What could not be seen is not in the plan, so a use of it that does all of its actions has not done all of the run.
synctest!(uses_of_an_incomplete_plan_end_as_it_did, as user, |w: World| {
    applied_here(&w).source("a d/b").dest("gone");
    w.build("src", |t| drop(t.dir("closed").mode(0)));
    // For the plan.
    let beside = w.tested().parent().unwrap();
    std::fs::set_permissions(beside, std::fs::Permissions::from_mode(0o777)).unwrap();
    let planned = w.plan(&["-a"]);
    assert_eq!(planned.exit, 23, "{}", planned.stderr);
    let why = "incomplete: not everything could be read or examined (exit 23)\n";
    assert!(planned.stdout.contains(why), "{}", planned.stdout);

    let closed = w.tested().join("src/closed");
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(closed.join("new"), "").unwrap();
    for _ in 0..2 {
        let applied = w.apply(&[]);
        assert_eq!(applied.exit, 23, "{}", applied.stderr);
        let warning = "sparsync apply: the plan ../the.plan is incomplete, because not everything could be read or examined \
                       when it was made: the rest is left as it is; make a new plan for it\n";
        assert_eq!(applied.stderr.matches(warning).count(), 1, "{}", applied.stderr);
        assert!(applied.stderr.starts_with(warning), "{}", applied.stderr);
        assert!(!w.tested().join("dst/closed/new").exists());
    }
    let printed = w.apply(&["--json"]).stdout;
    let is_warning = |line: &str| line.contains("\"severity\":\"warning\"") && line.contains("is incomplete");
    assert!(printed.lines().any(is_warning), "{printed}");
    assert!(printed.contains("\"exit_code\":23"), "{printed}");
});

synctest!(
    deletions_that_were_stopped_count_as_such_later,
    |w: World| {
        applied_here(&w).source("a").dest("x y z");
        let planned = w.plan(&["-a", "--delete", "--max-delete=2"]);
        assert_eq!(planned.exit, 25, "{}", planned.stderr);
        let applied = w.apply(&["--without-deletions"]);
        assert_eq!(applied.exit, 0, "{}", applied.stderr);
        assert_eq!(applied.stderr, "");
        for _ in 0..2 {
            let applied = w.apply(&[]);
            assert_eq!(applied.exit, 25, "{}", applied.stderr);
            let why = "is incomplete, because --max-delete stopped deletions when it was made: ";
            assert!(applied.stderr.contains(why), "{}", applied.stderr);
            let count = std::fs::read_dir(w.tested().join("dst")).unwrap().count();
            assert_eq!(count, 2);
        }
        // A failure of the use weighs more.
        std::fs::remove_file(w.tested().join("dst/a")).unwrap();
        assert_eq!(w.plan(&["-a", "--delete", "--max-delete=0"]).exit, 25);
        std::fs::write(w.tested().join("dst/a"), "by another").unwrap();
        assert_eq!(w.apply(&[]).exit, 23);
    }
);

// The plan knows nothing of what is in it.
synctest!(names_in_a_directory_that_could_not_be_seen_stay, as user, |w: World| {
    w.not_served(NO_CLIENT)
        .not_with_stock("an rsync carries out no plan")
        .source("d/a b==d/a")
        .dest("d/a=other@5");
    w.build("dst", |t| drop(t.dir("d").mode(0)));
    // For the plan.
    let beside = w.tested().parent().unwrap();
    std::fs::set_permissions(beside, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(w.plan(&["-aH"]).exit, 23);
    let applied = w.apply(&[]);
    assert_eq!(applied.exit, 23, "{}", applied.stderr);
    for name in ["b", "d/a"] {
        let line = format!("because the destination has changed since the plan: \"{name}\"\n");
        assert!(applied.stderr.contains(&line), "{}", applied.stderr);
    }
    assert!(!w.tested().join("dst/b").exists());
    let left = std::fs::read(w.tested().join("dst/d/a")).unwrap();
    assert_eq!(left, b"other");
});

// ── the file ────────────────────────────────────────────────────────────────────────────────────

/// A tree with a source `t`, and a plan `p` of its copy to `d`.
fn planned() -> HashedTree {
    let tree = HashedTree::new(&[b"a", b"d/b", b"d/\xff\n"]);
    tree.well(&["plan", "-a", "t/", "d/", "-o", "p"]);
    tree
}

fn lines_of(tree: &HashedTree, plan: &str) -> Vec<String> {
    let text = tree.well(&["plan", "--show", plan, "--json"]);
    let text = String::from_utf8(text).expect("JSON is UTF-8");
    text.lines().map(str::to_owned).collect()
}

#[test]
fn lines_match_the_schema() {
    let tree = planned();
    let lines = lines_of(&tree, "p");
    for line in &lines {
        check_line(&serde_json::from_str(line).unwrap());
    }
    let paths: Vec<Value> = lines
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["path"].clone())
        .collect();
    assert_eq!(paths.last(), Some(&Value::Null));
    assert!(paths.contains(&Value::from("d/b")), "{paths:?}");
}

#[test]
fn only_the_owner_can_read_a_plan() {
    let tree = planned();
    let mode = std::fs::metadata(tree.path("p"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o600);
    // It is replaced as a whole.
    std::fs::set_permissions(tree.path("p"), std::fs::Permissions::from_mode(0o644)).unwrap();
    tree.well(&["plan", "-a", "t/", "d/", "--output", "p"]);
    let mode = std::fs::metadata(tree.path("p"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o600);
}

#[test]
fn plans_that_others_can_change_are_not_applied() {
    let tree = planned();
    let plan = tree.path("p");
    let set_mode = |mode| {
        std::fs::set_permissions(&plan, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let is_applied_not = |reason: &str, hint: &str| {
        let output = tree.run(&["apply", "p"]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains(reason) && stderr.contains(hint), "{stderr}");
        assert_eq!(output.status.code(), Some(11), "{stderr}");
        assert!(!tree.path("d").exists());
        // What it contains may be read.
        tree.well(&["plan", "--show", "p"]);
    };
    for mode in [0o620, 0o602, 0o666] {
        set_mode(mode);
        is_applied_not(
            "the plan p is refused: other users can change it",
            "hint: run `chmod go-w` on it",
        );
    }
    set_mode(0o644);
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&plan, Some(1234), None).unwrap();
        is_applied_not(
            "the plan p is refused: it is owned by user 1234",
            "hint: run `chown 0` on it",
        );
    }

    // The user who redirects standard input has chosen the file.
    let output = tree
        .command(&["apply", "/dev/stdin"])
        .stdin(std::fs::File::open(&plan).unwrap())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(tree.path("d").exists());
}

#[test]
fn what_is_no_regular_file_is_not_replaced() {
    let tree = planned();
    symlink("p", tree.path("link")).unwrap();
    std::fs::create_dir(tree.path("dir")).unwrap();
    for name in ["/dev/null", "link", "dir"] {
        let output = tree.run(&["plan", "-a", "t/", "d/", "-o", name]);
        assert_eq!(output.status.code(), Some(11), "{name}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("it is no regular file"), "{stderr}");
    }
}

/// Applies a plan that must be refused for this reason, before anything is changed.
#[track_caller]
fn is_refused(tree: &HashedTree, plan: &[u8], reason: &str) {
    std::fs::write(tree.path("bad"), plan).unwrap();
    for words in [&["apply", "bad"][..], &["plan", "--show", "bad"]] {
        let output = tree.run(words);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains(reason), "{words:?}: {stderr}");
        assert_eq!(output.status.code(), Some(11), "{words:?}");
    }
    assert!(!tree.path("d").exists());
}

fn compressed(lines: &[String]) -> Vec<u8> {
    let mut child = std::process::Command::new("zstd")
        .args(["-q", "-c"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("zstd is installed");
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
    child.wait_with_output().unwrap().stdout
}

#[test]
fn changed_and_truncated_plans_are_refused() {
    let tree = planned();
    if std::process::Command::new("zstd")
        .arg("--version")
        .output()
        .is_err()
    {
        return report_skip("plans", "zstd is not installed");
    }
    let plan = std::fs::read(tree.path("p")).unwrap();
    for len in [0, 1, 3, plan.len() / 2, plan.len() - 1] {
        let reason = if len == 0 {
            "it is truncated"
        } else {
            "is refused: it is "
        };
        is_refused(&tree, &plan[..len], reason);
    }
    is_refused(
        &tree,
        &[&plan[..], &plan].concat(),
        "something follows its end",
    );
    is_refused(&tree, b"no plan", "it is no plan");

    let lines = lines_of(&tree, "p");
    let with = |at: usize, from: &str, to: &str| {
        let mut lines = lines.clone();
        assert!(lines[at].contains(from), "{}", lines[at]);
        lines[at] = lines[at].replacen(from, to, 1);
        compressed(&lines)
    };
    is_refused(
        &tree,
        &with(0, "\"version\":6", "\"version\":5"),
        "it has version 5 of the format, and this program reads version 6",
    );
    is_refused(
        &tree,
        &with(0, "\"t/\"", "\"x/\""),
        "the digest in its last line is another one",
    );
    is_refused(
        &tree,
        &with(2, "\"path\":\"", "\"path\":\"x"),
        "the digest in its last line",
    );
    is_refused(
        &tree,
        &with(1, "\"action\":\"create\"", "\"action\":\"burn\""),
        "a line is not one of a plan",
    );
    let end = lines.len() - 1;
    // As if the dry run had not ended with 0.
    is_refused(
        &tree,
        &with(end - 1, "\"exit_code\":0", "\"exit_code\":23"),
        "the digest in its last line",
    );
    let without_outcome = [&lines[..end - 1], &lines[end..]].concat();
    is_refused(
        &tree,
        &compressed(&without_outcome),
        "not in the order of a plan",
    );
    is_refused(&tree, &compressed(&lines[..end]), "it is truncated");
    is_refused(
        &tree,
        &compressed(&lines[1..]),
        "not in the order of a plan",
    );
    let without_one = [&lines[..1], &lines[2..]].concat();
    is_refused(
        &tree,
        &compressed(&without_one),
        "the digest in its last line",
    );
    // As it was, it is accepted.
    std::fs::write(tree.path("good"), compressed(&lines)).unwrap();
    tree.well(&["apply", "good"]);
    assert!(tree.path("d/d/b").exists());
}

#[test]
fn other_roots_must_be_permitted() {
    let tree = planned();
    tree.well(&["apply", "p"]);
    tree.well(&["plan", "-a", "t/", "d/", "-o", "p"]);
    std::fs::remove_dir_all(tree.path("d")).unwrap();
    let refused = |words: &[&str], reason: &str| {
        let output = tree.run(words);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains(reason), "{stderr}");
        assert_ne!(output.status.code(), Some(0));
    };
    refused(
        &["apply", "p"],
        "the destination is gone: d/: nothing was changed",
    );
    refused(&["apply", "p", "t/", "e/"], "require --root-changed");
    std::fs::create_dir(tree.path("sub")).unwrap();
    let elsewhere = tree
        .command(&["apply", "../p"])
        .current_dir(tree.path("sub"))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&elsewhere.stderr);
    assert!(
        stderr.contains("the plan has relative paths, and was made in "),
        "{stderr}"
    );
    assert_eq!(elsewhere.status.code(), Some(3));

    tree.well(&["plan", "-a", "t/", "new/", "-o", "p"]);
    tree.well(&["apply", "--root-changed", "p", "t/", "other/"]);
    assert!(tree.path("other/d/b").exists() && !tree.path("new").exists());
}

#[test]
fn options_that_a_plan_cannot_record_are_refused() {
    let tree = planned();
    for option in [
        "--inplace",
        "--append",
        "--partial",
        "--remove-source-files",
        "-K",
        "--write-batch=x",
        "--lock",
    ] {
        let output = tree.run(&["plan", "-a", option, "t/", "d/", "-o", "q"]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            stderr.contains("cannot be used: a plan cannot record"),
            "{option}: {stderr}"
        );
        assert!(
            stderr.contains(option.split('=').next().unwrap()),
            "{option}: {stderr}"
        );
        assert_eq!(output.status.code(), Some(1), "{option}");
    }
    for option in [
        "--link-dest=x",
        "--copy-dest=x",
        "--compare-dest=x",
        "--existing",
        "--ignore-existing",
    ] {
        let output = tree.run(&["plan", "-aH", option, "t/", "d/", "-o", "q"]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        let name = option.split('=').next().unwrap();
        assert!(
            stderr.contains(&format!(
                "-H cannot be used with {name}: a plan cannot record"
            )),
            "{stderr}"
        );
        assert_eq!(output.status.code(), Some(1), "{option}");
    }
    let output = tree.run(&["plan", "-aHIb", "t/", "d/", "-o", "q"]);
    let words = "-H cannot be used with --ignore-times and --backup: a plan cannot record";
    assert!(String::from_utf8_lossy(&output.stderr).contains(words));
    assert_eq!(output.status.code(), Some(1));
    let output = tree.run(&["plan", "-ab", "--delete-excluded", "t/", "d/", "-o", "q"]);
    let words = "--backup cannot be used with --delete-excluded, unless --backup-dir names another directory";
    assert!(String::from_utf8_lossy(&output.stderr).contains(words));
    assert_eq!(output.status.code(), Some(1));
    let output = tree.run(&["plan", "-r", "t/", "d/", "-o", "q"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("--times"));
    assert!(!tree.path("q").exists());
}

#[test]
fn the_summary_has_counts_and_the_largest_directories() {
    let tree = HashedTree::new(&[b"a", b"d/b", b"d/c"]);
    for name in ["x", "y"] {
        write(&tree.path("d/old").join(name), "bye", 1);
    }
    let printed = tree.well(&["plan", "-a", "--delete", "t/", "d/", "-o", "p"]);
    let shown = tree.well(&["plan", "--show", "p"]);
    assert_eq!(printed, shown);
    let shown = String::from_utf8(shown).unwrap();
    assert!(shown.contains(" 3 deleted\n"), "{shown}");
    assert!(
        shown.contains("most deletions:\n    2 in old/\n    1 in the destination itself\n"),
        "{shown}"
    );
    let actions = String::from_utf8(tree.well(&["plan", "--show", "p", "-v"])).unwrap();
    assert!(
        actions.starts_with("*deleting   old/y\n*deleting   old/x\n*deleting   old/\n"),
        "{actions}"
    );
    assert!(actions.contains(">f+++++++++ d/b\n"), "{actions}");
}

#[test]
fn hard_links_are_shown() {
    let tree = HashedTree::new(&[b"a", b"d/b"]);
    std::fs::hard_link(tree.path("t/a"), tree.path("t/d/c")).unwrap();
    tree.well(&["plan", "-aH", "t/", "d/", "-o", "p"]);
    let shown = String::from_utf8(tree.well(&["plan", "--show", "p", "-v"])).unwrap();
    assert!(shown.contains("hf+++++++++ a => d/c\n"), "{shown}");
    assert!(shown.contains(" 1 hard links, "), "{shown}");
    // The destination may have several names of a file, too, and a name that stays taken.
    tree.well(&["-aH", "t/", "d/"]);
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(tree.path("d/a"), mode).unwrap();
    std::fs::remove_file(tree.path("d/d/c")).unwrap();
    std::fs::create_dir_all(tree.path("d/d/c/in")).unwrap();
    std::fs::hard_link(tree.path("d/a"), tree.path("d/other")).unwrap();
    let plan = tree.run(&[
        "plan",
        "-aH",
        "--delete",
        "--filter=P in",
        "t/",
        "d/",
        "-o",
        "taken",
    ]);
    assert_eq!(plan.status.code(), Some(23));
    let lines = lines_of(&tree, "taken");
    for part in ["\"shared_file\":{\"device\":", "\"taken\":{\"names\":1,"] {
        assert!(
            lines.iter().any(|line| line.contains(part)),
            "{part}: {lines:?}"
        );
    }
    for line in lines {
        check_line(&serde_json::from_str(&line).unwrap());
    }
    for line in lines_of(&tree, "p") {
        check_line(&serde_json::from_str(&line).unwrap());
    }
}

#[test]
fn a_plan_of_many_files_is_applied_in_several_frames() {
    let tree = HashedTree::new(&[b"a"]);
    for n in 0..3000 {
        write(&tree.path(&format!("t/dir{}/file{n}", n % 7)), "", 1);
    }
    tree.well(&["plan", "-a", "t/", "d/", "-o", "p"]);
    tree.well(&["apply", "p"]);
    assert_eq!(
        tree.well(&["plan", "-a", "t/", "d/", "-o", "p"]),
        tree.well(&["plan", "--show", "p"])
    );
    assert!(lines_of(&tree, "p").len() == 3, "nothing is left");
}

// ── the other end ───────────────────────────────────────────────────────────────────────────────

/// A tree with a source `t` and a destination `d`, whose remote shell `./shell` runs a script with the command in `$*`.
struct FarTree {
    tree: HashedTree,
    env: Vec<(&'static str, String)>,
}

impl FarTree {
    fn new() -> FarTree {
        let tree = HashedTree::new(&[b"a", b"d/b"]);
        write(&tree.path("d/a"), "older", 1);
        write(&tree.path("d/gone"), "bye", 1);
        let env = Vec::new();
        FarTree { tree, env }
    }

    fn shell(&self, script: &str) {
        let path = self.tree.path("shell");
        std::fs::write(&path, format!("#!/bin/sh\nshift\n{script}\n")).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn run(&self, words: &[&str]) -> (i32, String) {
        let mut command = self.tree.command(words);
        let output = command.envs(self.env.iter().cloned()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code().unwrap_or(-1), stderr)
    }

    /// Makes a plan, also with these options.
    #[track_caller]
    fn plan(&self, options: &[&str], operands: [&str; 2]) {
        let program = format!("--rsync-path={}", oracle::under_test().display());
        let shell = ["--rsh=./shell", &program];
        // A daemon is reached without one.
        let shell = if self.env.is_empty() { &shell[..] } else { &[] };
        let start = ["plan", "-a", "--delete", "-o", "p"];
        let (exit, stderr) = self.run(&[&start, shell, options, &operands].concat());
        assert_eq!((exit, stderr.as_str()), (0, ""));
    }

    /// Applies the plan, which must be refused with these words before anything is changed.
    #[track_caller]
    fn is_refused(&self, exit: i32, words: &str) {
        let before = self.names();
        let (ended, stderr) = self.run(&["apply", "p"]);
        assert!(stderr.contains(words), "{stderr}");
        assert_eq!(ended, exit, "{stderr}");
        assert_eq!(self.names(), before, "{stderr}");
    }

    /// Applies the plan, which must succeed.
    #[track_caller]
    fn is_applied(&self) {
        let (exit, stderr) = self.run(&["apply", "p"]);
        assert_eq!((exit, stderr.as_str()), (0, ""));
        let text = |name: &str| std::fs::read_to_string(self.tree.path(name)).unwrap();
        assert_eq!(text("d/a"), "a");
        assert_eq!(text("d/d/b"), "d/b");
        assert!(!self.tree.path("d/gone").exists());
    }

    /// Returns the names at both ends, with lengths.
    fn names(&self) -> String {
        let listed = std::process::Command::new("find")
            .args(["t", "d", "-printf", "%p %y %s %T@\n"])
            .current_dir(self.tree.path(""))
            .output()
            .unwrap();
        String::from_utf8(listed.stdout).unwrap()
    }
}

const PUSHED: [&str; 2] = ["t/", "far:d/"];
const PULLED: [&str; 2] = ["far:t/", "d/"];

/// An older program knows neither the word that announces a plan nor the message with its actions.
#[test]
fn an_older_program_at_the_other_end_refuses_the_plan() {
    if !Path::new("/usr/bin/perl").exists() {
        return report_skip("plans", "perl is not installed");
    }
    for operands in [PUSHED, PULLED] {
        let far = FarTree::new();
        far.shell("exec sh -c \"$*\"");
        far.plan(&[], operands);
        // To this one, the word is as unknown as to an older one.
        far.shell(
            "perl -e 'while (sysread(STDIN, $_, 65536)) { s/--replay-plan/--replay-plum/; syswrite(STDOUT, $_) }' \
             | sh -c \"$*\"",
        );
        far.is_refused(
            2,
            "--replay-plum: unknown option (the sparsync there is older: upgrade it)",
        );
        far.shell("exec sh -c \"$*\"");
        far.is_applied();
    }
}

/// The command that a login is restricted to decides, also about what is carried out of a plan.
#[test]
fn a_forced_command_limits_what_is_applied() {
    let forced =
        |words: &str| format!("exec sh -c \"$(echo \"$*\" | sed 's, \\. , {words} . ,')\"");
    for (words, option) in [
        ("--backup-dir old", None),
        ("-b", Some("--backup")),
        ("--inplace", Some("--inplace")),
        ("--append", Some("--append")),
        ("--partial", Some("--partial")),
        ("-K", Some("--keep-dirlinks")),
        ("--detect-renamed", Some("--detect-renamed")),
        ("--remove-source-files", Some("--remove-source-files")),
        ("--dry-run", Some("--dry-run")),
    ] {
        for operands in [PUSHED, PULLED] {
            // Only the end with the source removes it.
            if words == "--remove-source-files" && operands == PUSHED {
                continue;
            }
            let far = FarTree::new();
            far.shell("exec sh -c \"$*\"");
            far.plan(&[], operands);
            far.shell(&forced(words));
            let option = option.unwrap_or("--backup");
            far.is_refused(
                2,
                &format!("request rejected: {option} is on the command line"),
            );
        }
    }
    // What a plan is made with can be fixed as a whole.
    for operands in [PUSHED, PULLED] {
        let far = FarTree::new();
        far.shell("exec sh -c \"$*\"");
        far.plan(&[], operands);
        far.shell("echo \"$*\" >>asked; exec sh -c \"$*\"");
        far.is_applied();
        let asked = std::fs::read_to_string(far.tree.path("asked")).unwrap();
        assert!(!asked.contains("--replay-plan"), "{asked}");
        far.shell(&format!("exec sh -c '{}'", asked.trim_end()));
        assert_eq!(far.run(&["apply", "p"]), (0, String::new()));
    }
    // One without deletions permits none.
    let far = FarTree::new();
    far.shell("exec sh -c \"$*\"");
    far.plan(&[], PUSHED);
    far.shell("exec sh -c \"$(echo \"$*\" | sed 's, --delete,,')\"");
    far.is_refused(2, "--delete is not on the command line of this server");
}

#[test]
fn a_plan_is_not_applied_by_a_read_only_grant() {
    let session = |rights: &str| {
        let program = oracle::under_test().display();
        format!("exec {program} server session --root / {rights}")
    };
    let far = FarTree::new();
    let path = |name: &str| format!("far:{}/", far.tree.path(name).display());
    far.shell(&session(""));
    far.plan(&["-s"], ["t/", &path("d")]);
    far.shell(&session("--read-only"));
    far.is_refused(3, "the grant of this machine's key is read-only");
    far.shell(&session(""));
    far.is_applied();

    let far = FarTree::new();
    let from = format!("far:{}/", far.tree.path("t").display());
    far.shell(&session("--read-only"));
    far.plan(&["-s"], [&from, "d/"]);
    far.is_applied();
}

#[test]
fn a_daemon_module_decides_what_is_applied() {
    let mut far = FarTree::new();
    let top = far.tree.path("").display().to_string();
    let program = oracle::under_test().display();
    let connect = format!("{program} --daemon --config={top}/conf");
    far.env = vec![("RSYNC_CONNECT_PROG", connect)];
    let config = |lines: &str| {
        let text = format!("use chroot = no\nuid = 0\ngid = 0\n[m]\npath = {top}/d\n{lines}\n");
        std::fs::write(far.tree.path("conf"), text).unwrap();
    };
    config("read only = no");
    far.plan(&[], ["t/", "host::m/"]);
    for lines in [
        "read only = yes",
        "read only = no\nrefuse options = delete",
        "read only = no\nexclude = /x",
    ] {
        config(lines);
        far.is_refused(
            4,
            "sparsync apply: the daemon speaks rsync's protocol for this module: nothing was changed",
        );
    }
    config("read only = no");
    far.is_applied();
}

// ── kills ───────────────────────────────────────────────────────────────────────────────────────

fn trees(top: &Path) {
    both(top);
    renamed::add_renamed(top);
    for tree in ["src", "dst"] {
        std::fs::remove_file(top.join(tree).join("second")).expect("it was just created");
    }
    write(&top.join("src/new/deep/file"), "new", 3);
    std::fs::create_dir_all(top.join("dst/is_dir/in")).unwrap();
    write(&top.join("dst/is_dir/in/x"), "x", 1);
    write(&top.join("src/is_dir"), "a file", 2);
    write(&top.join("dst/is_file"), "a file", 1);
    write(&top.join("src/is_file/x"), "x", 2);
    for (tree, value) in [("src", "new"), ("dst", "old")] {
        let path = top.join(tree).join("kept");
        write(&path, "same", 1);
        for name in [
            "user.one".to_owned(),
            "user.two".to_owned(),
            format!("user.{value}"),
        ] {
            let flags = rustix::fs::XattrFlags::empty();
            // Without attributes, it is one more file.
            let _ = rustix::fs::setxattr(&path, name, value.as_bytes(), flags);
        }
    }
    let link = |from: &str, to: &str| std::fs::hard_link(top.join(from), top.join(to)).unwrap();
    write(&top.join("dst/one"), "before", 1);
    write(&top.join("src/one"), "of three names", 2);
    link("src/one", "src/two");
    link("src/one", "src/new/three");
    for tree in ["src", "dst"] {
        write(&top.join(tree).join("pair"), "same", 1);
        write(&top.join(tree).join("parted"), "same", 1);
        link(&format!("{tree}/pair"), &format!("{tree}/pair2"));
    }
    link("dst/pair", "dst/pair3");
    link("src/parted", "src/parted2");
    write(&top.join("dst/parted2"), "same", 1);
    let mode = std::fs::Permissions::from_mode;
    std::fs::set_permissions(top.join("dst/pair"), mode(0o600)).unwrap();
    std::fs::set_permissions(top.join("dst/kept"), mode(0o600)).unwrap();
    std::fs::set_permissions(top.join("src/new"), mode(0o500)).unwrap();
    std::fs::set_permissions(top.join("src/is_file/x"), mode(0o4711)).unwrap();
}

/// Returns the paths of a tree, with what files contain.
fn contents(top: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![top.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten() {
            let path = entry.unwrap().path();
            let is_dir = path.symlink_metadata().unwrap().is_dir();
            let text = if is_dir {
                None
            } else {
                std::fs::read(&path).ok()
            };
            found.insert(path.strip_prefix(top).unwrap().to_owned(), text);
            if is_dir {
                dirs.push(path);
            }
        }
    }
    found
}

/// An `apply` that is killed at any call of a sample, and then repeated, ends as the run of rsync. `far`: options of the plan and its
/// destination.
fn killed_at_every_call(options: &[&str], far: &[&str], dest: &str, hook: &[(&str, String)]) {
    let scene = Trees {
        options: &[],
        build: trees,
        backups: &[],
    };
    let twin = Stage::new(&scene);
    let of_rsync: Vec<_> = options
        .iter()
        .copied()
        .filter(|it| !it.starts_with("--detect-renamed"))
        .collect();
    assert_eq!(twin.run_program(oracle::rsync(), &of_rsync, &[]).exit, 0);
    let wanted = twin.snapshot("dst");
    let wanted_backups = contents(&twin.top.join("bak"));
    for n in calls_with_faults(&format!("{options:?} {dest}")) {
        let stage = Stage::new(&scene);
        stage.script("shell", "#!/bin/sh\nshift\nexec sh -c \"exec $*\"\n");
        let plan_file = stage.top.with_extension("plan").display().to_string();
        let output = format!("--output={plan_file}");
        let plan = [&["plan", &output], options, far, &["src/", dest]].concat();
        let made = stage.run_words(oracle::under_test(), &plan, &[]);
        assert_eq!(made.exit, 0, "{}", made.stderr.escape_ascii());
        let apply = ["apply", &plan_file];
        let kill = [("SPARSYNC_KILL_AT", n.to_string())];
        let killed = stage.run_words(oracle::under_test(), &apply, &[hook, &kill].concat());
        let again = stage.run_words(oracle::under_test(), &apply, hook);
        let shown = format!(
            "{options:?}, killed at call {n} ({}), then exit {}: {}",
            killed.exit,
            again.exit,
            String::from_utf8_lossy(&again.stderr)
        );
        let differs = diff::trees(&wanted, &stage.snapshot("dst"));
        let other_backups = contents(&stage.top.join("bak"));
        std::fs::remove_file(&plan_file).unwrap();
        assert_eq!(again.exit, 0, "{shown}");
        assert_eq!(differs, None, "{shown}");
        assert_eq!(other_backups, wanted_backups, "{shown}");
        if killed.exit == 0 {
            return assert!(n > 20, "{n} calls");
        }
    }
}

#[test]
fn applied_again_after_a_kill_at_every_call() {
    for options in [
        &["-a", "--delete"][..],
        &["-aX", "--delete-before"],
        &["-ac", "--delete"],
        &["-aH", "--delete"],
        &["-aH", "--delete-after", "--delay-updates"],
    ] {
        killed_at_every_call(options, &[], "dst/", &[]);
    }
}

#[test]
fn backed_up_once_after_a_kill_at_every_call() {
    for options in [
        &["-ab", "--backup-dir=../bak", "--delete"][..],
        &[
            "-aHb",
            "--backup-dir=../bak",
            "--suffix=.1",
            "--delete-before",
            "--delay-updates",
        ],
    ] {
        killed_at_every_call(options, &[], "dst/", &[]);
    }
}

/// Without hard links, an entry is renamed to the name of its backup.
#[test]
fn backed_up_once_without_links_after_a_kill_at_every_call() {
    let hook = [("SPARSYNC_REFUSE", "linkat:EPERM".to_owned())];
    let options = ["-ab", "--backup-dir=../bak", "--delete"];
    killed_at_every_call(&options, &[], "dst/", &hook);
}

/// Client and server die at the n-th call.
#[test]
fn pushed_again_after_a_kill_at_every_call() {
    let program = format!("--rsync-path={}", oracle::under_test().display());
    let far = ["--rsh=./shell", &program];
    killed_at_every_call(&["-aH", "--delete"], &far, "far:dst/", &[]);
}

synctest!(a_destination_that_is_gone_is_not_created, |w: World| {
    applied_here(&w).source("a d/b").dest("old");
    for words in [&["-a"][..], &["-a", "--delete"]] {
        assert_eq!(w.plan(words).exit, 0);
        std::fs::remove_dir_all(w.tested().join("dst")).unwrap();
        let applied = w.apply(&[]);
        assert_eq!(applied.exit, 3, "{}", applied.stderr);
        let words = "sparsync apply: the destination is gone: ";
        assert!(applied.stderr.contains(words), "{}", applied.stderr);
        assert!(!w.tested().join("dst").exists());
        std::fs::create_dir(w.tested().join("dst")).unwrap();
    }
});

synctest!(a_destination_of_several_sources_is_created, |w: World| {
    applied_here(&w).source("a d/b").tree("two", "c");
    w.try_agree_by_plan(
        &["-a"],
        &["src/a", "src/d", "two", "new/"],
        Recorded::Wholly,
    )
    .unwrap();
});
