//! Runs by way of a plan: `sparsync plan`, then `sparsync apply`.

use super::{Output, Snapshot, World, diff, log_argv, oracle, put_world, run, snapshot};

/// Whether a plan has all of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    Wholly,
    /// What fails in the dry run is not in the plan.
    Partly,
}

/// What a plan, or its use, has printed.
pub struct Applied {
    pub exit: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Returns those of the options that rsync has. Without the others, a run ends alike.
fn of_rsync(options: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let is_own = |option: &Vec<u8>| option.starts_with(b"--detect-renamed");
    options
        .iter()
        .filter(|option| !is_own(option))
        .cloned()
        .collect()
}

impl World {
    /// Makes a plan with `options` for `src/` and `dst/`, which must change nothing. Returns what was printed.
    pub fn plan<A: AsRef<[u8]>>(&self, options: &[A]) -> Applied {
        self.try_plan(options, &["src/", "dst/"])
            .unwrap_or_else(|wrong| panic!("{wrong}"))
    }

    /// Does what [`World::plan`] does, for other operands.
    pub fn try_plan<A: AsRef<[u8]>, B: AsRef<[u8]>>(
        &self,
        options: &[A],
        operands: &[B],
    ) -> Result<Applied, String> {
        let options: Vec<_> = options.iter().map(|it| it.as_ref().to_vec()).collect();
        let operands: Vec<_> = operands.iter().map(|it| it.as_ref().to_vec()).collect();
        self.chown_to_runner();
        log_argv(&options, &operands);
        let before = snapshot(&self.twins[1], self.lens.get());
        let command = [b"plan".to_vec(), b"--output=../the.plan".to_vec()];
        let seen = self.see_command(oracle::under_test(), &command, &options, &operands, 1);
        if let Some(changed) = diff::trees(&before, &seen.tree) {
            let told = format!("  the plan has changed the trees:\n{changed}");
            return Err(self.failure("plan", &options, &operands, &told));
        }
        Ok(Applied {
            exit: seen.exit,
            stdout: seen.stdout,
            stderr: seen.stderr,
        })
    }

    /// Runs `sparsync explain --json` about `paths`, which must change nothing. Returns what was printed.
    pub fn try_explain<A: AsRef<[u8]>, B: AsRef<[u8]>>(
        &self,
        paths: &[B],
        options: &[A],
        operands: &[&str],
    ) -> Result<Applied, String> {
        let options: Vec<_> = options.iter().map(|it| it.as_ref().to_vec()).collect();
        let operands: Vec<_> = operands.iter().map(|it| it.as_bytes().to_vec()).collect();
        let paths = paths.iter().map(|it| it.as_ref().to_vec());
        let command: Vec<_> = [b"explain".to_vec(), b"--json".to_vec()]
            .into_iter()
            .chain(paths)
            .chain([b"--".to_vec()])
            .collect();
        let before = snapshot(&self.twins[1], self.lens.get());
        let seen = self.see_command(oracle::under_test(), &command, &options, &operands, 1);
        if let Some(changed) = diff::trees(&before, &seen.tree) {
            let told = format!("  the explanation has changed the trees:\n{changed}");
            return Err(self.failure("explain", &options, &operands, &told));
        }
        Ok(Applied {
            exit: seen.exit,
            stdout: seen.stdout,
            stderr: seen.stderr,
        })
    }

    /// Runs the program under test with `options` on `src/` and `dst/`. Returns its exit code, and what it leaves in `dst`.
    pub fn we_leave<A: AsRef<[u8]>>(&self, options: &[A]) -> (i32, Snapshot) {
        let options: Vec<_> = options.iter().map(|it| it.as_ref().to_vec()).collect();
        let operands = [b"src/".to_vec(), b"dst/".to_vec()];
        let seen = self.see(oracle::under_test(), &options, &operands, 1);
        (seen.exit, self.left_in(1))
    }

    /// Returns the new files of the plan that take the content of others, and these.
    pub fn planned_twins(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let words = ["plan", "--show", "../the.plan", "--json"];
        let words: Vec<_> = words
            .map(|word| put_world(word.as_bytes(), &self.twins[1]))
            .into();
        let surroundings = self.surroundings_of(oracle::under_test(), 1);
        let shown = run(oracle::under_test(), &words, &self.twins[1], &surroundings);
        let mut found = Vec::new();
        for line in shown.stdout.split(|byte| *byte == b'\n') {
            let Ok(action) = serde_json::from_slice::<serde_json::Value>(line) else {
                continue;
            };
            let path = |object: &serde_json::Value| {
                object["path"].as_str().map(|it| it.as_bytes().to_vec())
            };
            if let (Some(path), Some(twin)) = (path(&action), path(&action["twin"])) {
                found.push((path, twin));
            }
        }
        found
    }

    /// Applies the plan.
    pub fn apply(&self, options: &[&str]) -> Applied {
        let words = [&["apply"], options, &["../the.plan"]].concat();
        let words: Vec<_> = words.iter().map(|word| word.as_bytes()).collect();
        let words: Vec<_> = words
            .into_iter()
            .map(|word| put_world(word, &self.twins[1]))
            .collect();
        let surroundings = self.surroundings_of(oracle::under_test(), 1);
        let Output {
            stdout,
            stderr,
            exit,
        } = run(oracle::under_test(), &words, &self.twins[1], &surroundings);
        Applied {
            exit,
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        }
    }

    /// Runs rsync with `options` on `src/` and `dst/`. Returns its exit code, and what it leaves in `dst`.
    pub fn rsync_leaves<A: AsRef<[u8]>>(&self, options: &[A]) -> (i32, Snapshot) {
        let options: Vec<_> = options.iter().map(|it| it.as_ref().to_vec()).collect();
        let operands = [b"src/".to_vec(), b"dst/".to_vec()];
        let seen = self.see(oracle::rsync(), &of_rsync(&options), &operands, 0);
        (seen.exit, self.left_in(0))
    }

    /// Returns what `dst` has now in the trees of the program under test.
    pub fn left_by_us(&self) -> Snapshot {
        self.left_in(1)
    }

    fn left_in(&self, twin: usize) -> Snapshot {
        snapshot(&self.twins[twin].join("dst"), self.lens.get())
    }

    /// Runs rsync with `options` on `src/` and `dst/`, and sparsync by way of a plan, which is applied twice. All must end
    /// alike.
    pub fn agree_by_plan<A: AsRef<[u8]>>(&self, options: &[A]) {
        self.try_agree_by_plan(options, &["src/", "dst/"], Recorded::Wholly)
            .unwrap_or_else(|difference| panic!("{difference}"));
    }

    /// Does what [`World::agree_by_plan`] does with these operands, and returns what differs instead of failing.
    pub fn try_agree_by_plan<A: AsRef<[u8]>, B: AsRef<[u8]>>(
        &self,
        options: &[A],
        operands: &[B],
        recorded: Recorded,
    ) -> Result<(), String> {
        let options: Vec<_> = options.iter().map(|it| it.as_ref().to_vec()).collect();
        let operands: Vec<_> = operands.iter().map(|it| it.as_ref().to_vec()).collect();
        self.chown_to_runner();
        let wanted = self.see(oracle::rsync(), &of_rsync(&options), &operands, 0);
        let planned = self.try_plan(&options, &operands)?;
        // An rsync does not learn from a daemon that deletions were stopped.
        let is_unknown = planned.exit == 25 && self.route().is_daemon();
        // What failed in the dry run is not in the plan.
        let is_part = recorded == Recorded::Partly && planned.exit != 0 && wanted.exit != 0;
        for phase in ["apply", "apply again"] {
            let applied = self.apply(&[]);
            let got = snapshot(&self.twins[1], self.lens.get());
            let mut differences = Vec::new();
            if !is_part {
                differences.extend(diff::trees(&wanted.tree, &got));
            }
            if planned.exit != 0 && wanted.exit == 0 && !is_unknown {
                let exit = planned.exit;
                differences.push(format!("  the plan exits with {exit}, rsync with 0\n"));
            }
            // What a run of sparsync reports as well, the plan reports, and each use of it.
            if planned.exit == wanted.exit && applied.exit != wanted.exit {
                let [exit, wanted] = [applied.exit, wanted.exit];
                differences.push(format!("  exit {exit}, rsync and the plan {wanted}\n"));
            }
            if planned.exit != 0 && applied.exit == 0 {
                let exit = planned.exit;
                differences.push(format!("  exit 0, the plan {exit}\n"));
            }
            let differences = differences.concat();
            if !differences.is_empty() {
                let told = format!(
                    "{differences}  planned\n{}\n{}\n  applied\n{}\n{}\n",
                    planned.stdout, planned.stderr, applied.stdout, applied.stderr
                );
                return Err(self.failure(phase, &options, &operands, &told));
            }
        }
        Ok(())
    }
}
