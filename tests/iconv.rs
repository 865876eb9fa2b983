//! `--iconv`: names are converted between the character sets of both ends.

use crate::kit::{World, synctest};
use std::os::unix::ffi::OsStrExt as _;

/// Returns the option for a source with names in one character set and a destination with names in another.
fn charsets(w: &World, source: &str, dest: &str) -> String {
    w.not_with_server("names are converted only by rsync's protocol");
    if w.is_pulled() {
        format!("--iconv={dest},{source}")
    } else {
        format!("--iconv={source},{dest}")
    }
}

/// A source with names in UTF-8, and a destination with names in ISO-8859-1.
fn scene(w: &World) -> String {
    w.not_with_daemon("the module has no charset")
        .env("LC_ALL", "C.UTF-8")
        .build("src", |t| {
            t.file("ä", "1");
            t.file("plain", "2");
            t.dir("dö").mode(0o755);
            t.file("dö/ü", "3");
            t.dir("dö/é").mode(0o755);
            t.file("dö/é/z", "4");
            t.symlink("lß", "dö/ü");
        });
    w.build("dst", |t| {
        t.file(b"\xe4", "older");
        t.dir(b"d\xf6").mode(0o755);
        t.file(b"d\xf6/gone\xfc", "5");
        t.file("gonä", "6");
    });
    charsets(w, "utf8", "latin1")
}

synctest!(converted_names, |w: World| {
    let iconv = scene(&w);
    w.agree(&["-ai", &iconv]).exits(0).never_prints("#303");
    w.agree(&["-ai", &iconv]).exits(0);
});

synctest!(converted_names_with_deletion, |w: World| {
    let iconv = scene(&w);
    w.agree(&["-ai", "--delete", &iconv])
        .exits(0)
        .prints("gone");
});

// Its two ends print at the same time.
synctest!(lines_name_the_character_sets, |w: World| {
    let iconv = scene(&w);
    w.not_served_push("a push has no incremental recursion");
    w.no_dry_run().stderr_unordered().keep_dest();
    for options in [
        &["-avv"][..],
        &["-a", "--debug=iconv"],
        &["-a", "-M--debug=iconv"],
        &["-avvq"],
    ] {
        w.restore_dest()
            .agree(&[options, &[&iconv]].concat())
            .exits(0);
    }
});

synctest!(converted_names_without_incremental_recursion, |w: World| {
    let iconv = scene(&w);
    w.agree(&["-aiv", "--no-i-r", "--delete", &iconv]).exits(0);
});

synctest!(converted_names_by_older_protocols, |w: World| {
    let iconv = scene(&w);
    w.only_local("stock sessions have tests of their own");
    for protocol in ["30", "31"] {
        w.agree_paths(
            &["-ai", &format!("--protocol={protocol}"), &iconv],
            &["src/", protocol],
        )
        .exits(0);
    }
});

synctest!(converted_names_of_hard_links_and_content, |w: World| {
    let iconv = scene(&w);
    w.build("src", |t| {
        t.hardlink("dö/hä", "plain");
        t.hardlink("a", "plain");
    });
    w.agree(&["-aiHc", &iconv]).exits(0);
});

synctest!(converted_names_with_backups, |w: World| {
    let iconv = scene(&w);
    w.agree(&["-aib", "--suffix=ü", &iconv]).exits(0);
});

synctest!(names_that_the_sender_cannot_convert, |w: World| {
    let iconv = scene(&w);
    w.build("src", |t| {
        t.file(b"bad\xff", "1");
        t.dir(b"dir\xff").mode(0o755);
        t.file(b"dir\xff/in", "2");
        t.file("dö/€".as_bytes(), "3");
        t.symlink("raw", b"x\xff");
    });
    let _ = iconv;
    let iconv = charsets(&w, "utf8", "utf8");
    let agreed = w
        .stderr_unordered()
        .no_dry_run()
        .agree(&["-ai", "--delete", &iconv])
        .exits(23);
    agreed.warns("[sender] cannot convert filename: bad");
});

synctest!(names_that_the_receiver_cannot_convert, |w: World| {
    let iconv = scene(&w);
    w.build("src", |t| {
        t.file("€", "1");
        t.dir("d€").mode(0o755);
        t.file("d€/in", "2");
        t.dir("d€/sub").mode(0o755);
        t.symlink("link", "€");
    });
    w.only_local("rsync ends with an error if it recurses incrementally");
    w.stderr_unordered()
        .no_dry_run()
        .alone(&["-ai", "--delete", &iconv])
        .exits(23)
        .warns("cannot convert filename: ");
    assert!(w.tested().join("dst/plain").exists());
    assert!(
        w.tested().join("dst/gonä").exists(),
        "a deletion after an error"
    );
    assert!(!w.tested().join("dst/d€").exists());
});

synctest!(order_changes_by_conversion, |w: World| {
    w.not_with_daemon("the module has no charset")
        .env("LC_ALL", "C.UTF-8")
        .build("src", |t| {
            // In KOI8-R, the letters have another order.
            for name in ["а", "б", "ц", "ю", "я", "Ю", "А", "z"] {
                t.file(name, name);
                t.dir(format!("d{name}")).mode(0o755);
                t.file(format!("d{name}/f{name}"), "2");
                t.dir(format!("d{name}/{name}{name}")).mode(0o755);
                t.file(format!("d{name}/{name}{name}/f"), "3");
            }
        });
    let iconv = charsets(&w, "UTF-8", "KOI8-R");
    w.alone(&["-ai", &iconv]).exits(0);
    w.alone(&["-aic", &iconv]).exits(0).never_prints("f");
    let file = [&b"dst/d\xc0/\xc0\xc0/f"[..]].concat();
    let file = w.tested().join(std::ffi::OsStr::from_bytes(&file));
    assert_eq!(std::fs::read(file).unwrap(), b"3");
});

synctest!(
    lists_of_names_are_converted_with_secluded_args,
    |w: World| {
        let iconv = scene(&w);
        let (utf8, latin1) = ("ä\ndö/ü\n".as_bytes(), &b"\xe4\nd\xf6/\xfc\n"[..]);
        w.file("list", if w.is_pulled() { latin1 } else { utf8 });
        w.once()
            .agree_paths(&["-ais", "--files-from=list", &iconv], &["src/", "new/"])
            .exits(0);
    }
);

synctest!(rules_are_not_converted, |w: World| {
    let iconv = scene(&w);
    w.not_pulled("rsync rejects an entry that its rules exclude");
    w.agree(&["-ai", "--exclude=ä", "--delete", &iconv])
        .exits(0);
});

synctest!(
    character_sets_of_the_locale_and_the_environment,
    |w: World| {
        scene(&w);
        w.only_local("the option comes from the environment");
        w.agree(&["-ai", "--iconv=."]).exits(0);
        w.agree_paths(&["-ai", "--iconv=,latin1"], &["src/", "1"])
            .exits(0);
        w.env("RSYNC_ICONV", "utf8,latin1")
            .agree_paths(&["-ai"], &["src/", "2"])
            .exits(0);
        w.agree_paths(&["-ai", "--no-iconv"], &["src/", "3"])
            .exits(0);
        w.agree_paths(&["-ai", "--iconv=-"], &["src/", "4"])
            .exits(0);
        w.agree_paths(&["-r", "--list-only", "--iconv=."], &["src/"])
            .exits(0);
    }
);

synctest!(unknown_character_sets, |w: World| {
    scene(&w);
    w.only_local("see above")
        .alone(&["-ai", "--iconv=nope,utf8"])
        .exits(4)
        .warns("iconv_open(\"UTF-8\", \"nope\") failed");
    w.alone(&["-ai", "--iconv=utf8,nope"])
        .exits(12)
        .warns("iconv_open(\"UTF-8\", \"nope\") failed");
});
