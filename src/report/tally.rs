//! The counts of a run, and its exit code.

use super::event::{Event, Weight};
use crate::exit::Exit;
use crate::flist::Kind;
use crate::plan::planned::PlanGap;

/// The number of entries of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kinds {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub dirs: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Devices.
    pub devices: u64,
    /// Fifos and sockets.
    pub specials: u64,
}

impl Kinds {
    /// Counts one entry.
    pub fn add(&mut self, kind: Kind) {
        match kind {
            Kind::File => self.files += 1,
            Kind::Dir => self.dirs += 1,
            Kind::Symlink => self.symlinks += 1,
            Kind::Device => self.devices += 1,
            Kind::Special => self.specials += 1,
        }
    }

    /// Returns the total.
    pub fn total(&self) -> u64 {
        self.files + self.dirs + self.symlinks + self.devices + self.specials
    }

    /// Returns each number with rsync's word for it, in rsync's order.
    pub fn named(&self) -> [(&'static str, u64); 5] {
        [
            ("reg", self.files),
            ("dir", self.dirs),
            ("link", self.symlinks),
            ("dev", self.devices),
            ("special", self.specials),
        ]
    }

    fn without(&self, other: &Kinds) -> Kinds {
        Kinds {
            files: self.files.saturating_sub(other.files),
            dirs: self.dirs.saturating_sub(other.dirs),
            symlinks: self.symlinks.saturating_sub(other.symlinks),
            devices: self.devices.saturating_sub(other.devices),
            specials: self.specials.saturating_sub(other.specials),
        }
    }

    fn merge(&mut self, other: &Kinds) {
        self.files += other.files;
        self.dirs += other.dirs;
        self.symlinks += other.symlinks;
        self.devices += other.devices;
        self.specials += other.specials;
    }
}

/// The counts of a run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tally {
    /// Entries in the source's list.
    pub listed: Kinds,
    /// Entries that the destination did not have, as rsync counts them: also if they could not be created in the end.
    pub created: Kinds,
    /// Those of `created` that are not there: the source could not provide the file, or the directory could not be made.
    /// Not sent to a peer.
    pub absent: Kinds,
    /// Entries that were removed.
    pub deleted: Kinds,
    /// Regular files whose data was (or in a dry run would be) transferred.
    pub transferred: u64,
    /// Those of `transferred` of which the source could not provide the data, on this side's account: rsync's sender
    /// counts the files that it begins to send. Not sent to a peer.
    pub unsent: u64,
    /// The total length of those.
    pub unsent_bytes: u64,
    /// The total length of the regular files and symlinks listed.
    pub total_bytes: u64,
    /// The total length of the regular files transferred, also in a dry run.
    pub transferred_bytes: u64,
    /// Bytes of data that came from the source; 0 in a dry run.
    pub literal_bytes: u64,
    /// Bytes of data taken from a basis file.
    pub matched_bytes: u64,
    /// The total length of names and symlink targets listed, for the traffic estimate.
    pub name_bytes: u64,
    /// Milliseconds until the source arguments were examined; if 0, rsync omits two lines.
    pub list_generation_ms: u64,
    /// Milliseconds spent sending the list.
    pub list_transfer_ms: u64,
    /// Problems that also stop deletions.
    pub source_errors: u64,
    /// Other problems with single entries on this side; in a local copy, at the source.
    pub failed: u64,
    /// The same on the other side; in a local copy, at the destination.
    pub failed_at_peer: u64,
    /// Source entries that vanished.
    pub vanished: u64,
    /// Whether `--max-delete` stopped deletions.
    pub delete_limit_reached: bool,
}

impl Tally {
    /// Counts an entry of the source. `name_len` is the length of its path plus a symlink's target.
    pub fn list(&mut self, kind: Kind, len_bytes: u64, name_len: usize) {
        self.listed.add(kind);
        self.name_bytes += name_len as u64;
        match kind {
            Kind::File | Kind::Symlink => self.total_bytes += len_bytes,
            Kind::Dir | Kind::Device | Kind::Special => {}
        }
    }

    /// Counts a regular file whose data is transferred. `literal_bytes` is 0 in a dry run.
    pub fn transfer(&mut self, len_bytes: u64, literal_bytes: u64) {
        self.transferred += 1;
        self.transferred_bytes += len_bytes;
        self.literal_bytes += literal_bytes;
    }

    /// Counts a file that is counted as transferred, but of which the source cannot provide the data.
    pub fn unsend(&mut self, len_bytes: u64) {
        self.unsent += 1;
        self.unsent_bytes += len_bytes;
    }

    /// Returns the entries that were really created.
    pub fn present(&self) -> Kinds {
        self.created.without(&self.absent)
    }

    /// Returns how many files were really transferred, and their total length.
    pub fn copied(&self) -> (u64, u64) {
        let files = self.transferred.saturating_sub(self.unsent);
        let bytes = self.transferred_bytes.saturating_sub(self.unsent_bytes);
        (files, bytes)
    }

    /// Returns how many problems make the exit code 23.
    pub fn errors(&self) -> u64 {
        self.source_errors + self.failed + self.failed_at_peer
    }

    /// Counts an event.
    pub fn event(&mut self, event: &Event) {
        match event {
            Event::Problem(problem) => self.problem(problem.weight),
            Event::Deleted { kind, .. } => self.deleted.add(*kind),
            Event::Item(_)
            | Event::Reused { .. }
            | Event::Note(_)
            | Event::Missing(_)
            | Event::Progress { .. }
            | Event::Begin(_)
            | Event::SourceChanged(_)
            | Event::Verified { .. }
            | Event::Planned(_)
            | Event::Explained(_)
            | Event::Checked(_)
            | Event::Listed { .. } => {}
        }
    }

    /// Counts a problem.
    pub fn problem(&mut self, weight: Weight) {
        match weight {
            Weight::SourceError => self.source_errors += 1,
            Weight::Failed => self.failed += 1,
            Weight::Vanished => self.vanished += 1,
            Weight::Warning => {}
        }
    }

    /// Moves up to `failed` failures from the other side's count to this side's: this side reported them to the other
    /// one, which counted them as its own.
    pub fn take_back(&mut self, failed: u64) {
        let moved = failed.min(self.failed_at_peer);
        self.failed_at_peer -= moved;
        self.failed += moved;
    }

    /// Runs `work`, and attributes the failures that it counts to the other side.
    pub fn at_peer<T>(&mut self, work: impl FnOnce(&mut Tally) -> T) -> T {
        let own_failed = self.failed;
        let done = work(self);
        self.failed_at_peer += self.failed - own_failed;
        self.failed = own_failed;
        done
    }

    /// Adds the counts of another part of the run.
    pub fn merge(&mut self, other: &Tally) {
        let Tally {
            listed,
            created,
            absent,
            deleted,
            transferred,
            unsent,
            unsent_bytes,
            total_bytes,
            transferred_bytes,
            literal_bytes,
            matched_bytes,
            name_bytes,
            list_generation_ms,
            list_transfer_ms,
            source_errors,
            failed,
            failed_at_peer,
            vanished,
            delete_limit_reached,
        } = other;
        self.listed.merge(listed);
        self.created.merge(created);
        self.absent.merge(absent);
        self.deleted.merge(deleted);
        self.transferred += transferred;
        self.unsent += unsent;
        self.unsent_bytes += unsent_bytes;
        self.total_bytes += total_bytes;
        self.transferred_bytes += transferred_bytes;
        self.literal_bytes += literal_bytes;
        self.matched_bytes += matched_bytes;
        self.name_bytes += name_bytes;
        self.list_generation_ms += list_generation_ms;
        self.list_transfer_ms += list_transfer_ms;
        self.source_errors += source_errors;
        self.failed += failed;
        self.failed_at_peer += failed_at_peer;
        self.vanished += vanished;
        self.delete_limit_reached |= delete_limit_reached;
    }

    /// Returns the client's exit code, as far as single entries determine it.
    ///
    /// Each of rsync's processes has its own exit code. Vanished files therefore take precedence over failures on the
    /// client's side, and failures on the other side over both.
    pub fn exit(&self) -> Exit {
        if self.source_errors + self.failed_at_peer > 0 {
            Exit::Partial
        } else if self.vanished > 0 {
            Exit::Vanished
        } else if self.failed > 0 {
            Exit::Partial
        } else if self.delete_limit_reached {
            Exit::DelLimit
        } else {
            Exit::Ok
        }
    }

    /// Returns the exit code of a client that carries out an incomplete plan: that of one run, which also met what the plan
    /// lacks.
    pub fn exit_with_gap(&self, gap: PlanGap) -> Exit {
        let mut whole = self.clone();
        match gap {
            PlanGap::Failed => whole.source_errors += 1,
            PlanGap::Vanished => whole.vanished += 1,
            PlanGap::DeletionsStopped => whole.delete_limit_reached = true,
        }
        whole.exit()
    }

    /// Returns the same exit code at the server, where the two sides are swapped.
    pub fn exit_of_server(&self) -> Exit {
        Tally {
            failed: self.failed_at_peer,
            failed_at_peer: self.failed,
            ..self.clone()
        }
        .exit()
    }

    /// Returns an estimate of the bytes that the source would have sent over a connection, as a local copy sends nothing:
    /// names, about twenty bytes of attributes for each, and the data; and of those that it would have received.
    pub fn traffic(&self) -> Traffic {
        Traffic {
            sent_bytes: self.literal_bytes
                + self.name_bytes
                + 20 * (self.listed.total() + self.transferred)
                + 19,
            received_bytes: 19 * self.transferred
                + 5 * (self.created.total() + self.deleted.total())
                + 12,
        }
    }
}

/// The bytes exchanged with a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// To the peer.
    pub sent_bytes: u64,
    /// From it.
    pub received_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worst_problem_determines_the_exit_code() {
        let mut tally = Tally::default();
        assert_eq!(tally.exit(), Exit::Ok);
        tally.problem(Weight::Warning);
        assert_eq!(tally.exit(), Exit::Ok);
        tally.delete_limit_reached = true;
        assert_eq!(tally.exit(), Exit::DelLimit);
        tally.problem(Weight::Failed);
        assert_eq!(tally.exit(), Exit::Partial);
        tally.problem(Weight::Vanished);
        assert_eq!(
            (tally.exit(), tally.exit_of_server()),
            (Exit::Vanished, Exit::Partial)
        );
        tally.at_peer(|tally| tally.problem(Weight::Failed));
        assert_eq!(
            (tally.failed, tally.failed_at_peer, tally.exit()),
            (1, 1, Exit::Partial)
        );
        tally.take_back(2);
        assert_eq!(
            (tally.failed, tally.failed_at_peer, tally.exit()),
            (2, 0, Exit::Vanished)
        );
        let source = Tally {
            source_errors: 1,
            ..Tally::default()
        };
        assert_eq!(source.exit(), Exit::Partial);
    }

    #[test]
    fn gap_of_a_plan_counts_as_a_problem_of_the_run() {
        let failed = Tally {
            failed: 1,
            ..Tally::default()
        };
        let vanished = Tally {
            vanished: 1,
            ..Tally::default()
        };
        let stopped = Tally {
            delete_limit_reached: true,
            ..Tally::default()
        };
        let [partial, gone, limit] = [Exit::Partial, Exit::Vanished, Exit::DelLimit];
        for (tally, exits) in [
            (Tally::default(), [partial, gone, limit]),
            (failed, [partial, gone, partial]),
            (vanished, [partial, gone, gone]),
            (stopped, [partial, gone, limit]),
        ] {
            let found = PlanGap::ALL.map(|gap| tally.exit_with_gap(gap));
            assert_eq!(found, exits, "{tally:?}");
        }
    }

    #[test]
    fn total_size_counts_files_and_symlinks() {
        let mut tally = Tally::default();
        tally.list(Kind::File, 123_456_789, 1);
        tally.list(Kind::File, 1, 1);
        tally.list(Kind::Symlink, 6, 7);
        tally.list(Kind::Dir, 4096, 1);
        assert_eq!(tally.total_bytes, 123_456_796);
        assert_eq!(tally.listed.total(), 4);
    }

    #[test]
    fn merge_adds_all_counts() {
        let mut one = Tally {
            failed: 1,
            failed_at_peer: 3,
            name_bytes: 3,
            delete_limit_reached: true,
            ..Tally::default()
        };
        one.created.add(Kind::Device);
        one.transfer(5, 4);
        let mut sum = one.clone();
        sum.merge(&one);
        assert_eq!(sum.failed_at_peer, 6);
        assert_eq!(
            (
                sum.failed,
                sum.name_bytes,
                sum.transferred,
                sum.literal_bytes
            ),
            (2, 6, 2, 8)
        );
        assert!(sum.delete_limit_reached && sum.created.devices == 2);
        let mut same = one.clone();
        same.merge(&Tally::default());
        assert_eq!(same, one);
    }
}
