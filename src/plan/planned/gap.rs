//! What a stored plan lacks of the run, because its dry run did not end with 0.

use crate::exit::Exit;

/// Why a plan has not all of the run. A run that carries it out cannot end with 0: what the plan lacks is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanGap {
    /// Something could not be read or examined.
    Failed,
    /// Files vanished.
    Vanished,
    /// `--max-delete` stopped deletions.
    DeletionsStopped,
}

impl PlanGap {
    /// All of them.
    pub const ALL: [PlanGap; 3] = [
        PlanGap::Failed,
        PlanGap::Vanished,
        PlanGap::DeletionsStopped,
    ];

    /// Returns the gap of a plan whose dry run ended with this exit code. `Err`: such a run makes no plan.
    pub fn of_exit(exit: Exit) -> Result<Option<PlanGap>, Exit> {
        let gap = PlanGap::ALL.into_iter().find(|gap| gap.exit() == exit);
        match exit {
            Exit::Ok => Ok(None),
            _ => gap.map(Some).ok_or(exit),
        }
    }

    /// Returns the exit code of the dry run.
    pub fn exit(self) -> Exit {
        match self {
            PlanGap::Failed => Exit::Partial,
            PlanGap::Vanished => Exit::Vanished,
            PlanGap::DeletionsStopped => Exit::DelLimit,
        }
    }

    /// Returns the reason in words.
    pub fn reason(self) -> &'static str {
        match self {
            PlanGap::Failed => "not everything could be read or examined",
            PlanGap::Vanished => "some files vanished",
            PlanGap::DeletionsStopped => "--max-delete stopped deletions",
        }
    }
}

/// The stored plan that a run carries out, if it lacks a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncompletePlan {
    /// The path of the plan as given.
    pub file: Vec<u8>,
    /// Why it lacks a part.
    pub gap: PlanGap,
}

impl IncompletePlan {
    /// Returns the line that warns of it at the start of the run.
    pub fn warning(&self) -> Vec<u8> {
        let reason = self.gap.reason();
        let words = format!(
            " is incomplete, because {reason} when it was made: the rest is left as it is; make a new plan for it"
        );
        let start = b"sparsync apply: the plan ".as_slice();
        [start, &self.file, words.as_bytes()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gap_follows_from_the_exit_code() {
        assert_eq!(PlanGap::of_exit(Exit::Ok), Ok(None));
        for gap in PlanGap::ALL {
            assert_eq!(PlanGap::of_exit(gap.exit()), Ok(Some(gap)));
        }
        assert_eq!(PlanGap::of_exit(Exit::Signal), Err(Exit::Signal));
    }
}
