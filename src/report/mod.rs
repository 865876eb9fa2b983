//! Reports the events of a run: as values, then as text.

pub mod bench_chart;
pub mod comparison;
pub mod early_line;
pub mod escape;
pub mod event;
pub mod explainer;
pub mod failed_paths;
pub mod final_error;
pub mod format;
pub mod gauge;
pub mod itemize;
pub mod json;
pub mod line_filter;
pub mod list;
pub mod live;
pub mod metrics;
pub mod number;
pub mod plan_line;
pub mod progress;
pub mod tally;
pub mod text;
pub mod times;

pub use event::{ErrorRole, Event, Item, Problem, Update, Wants, Weight};
pub use gauge::Gauge;
pub use tally::{Tally, Traffic};
pub use text::{Banner, PutAction, PutLine, RunFacts, TextReporter, totals_line};
