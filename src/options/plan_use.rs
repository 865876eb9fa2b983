//! What a run has to do with a stored plan.

/// Whether the actions of a run are recorded as a plan, or are those of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PlanUse {
    /// Neither.
    #[default]
    Free,
    /// `sparsync plan`: a dry run whose actions are recorded.
    Record,
    /// `sparsync apply`: only the actions of a plan are carried out.
    Replay,
}
