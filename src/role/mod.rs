//! The parts that a run is played with: who walks, who decides in order, who carries out.

pub mod scan;

pub mod apply;

pub mod generator;

pub mod source;

pub mod local;

pub mod session;
