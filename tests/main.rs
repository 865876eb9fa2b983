//! One binary for all tests that run the program.

mod kit;

mod altdest;
mod attrs;
mod copy;
mod delete;
mod exit;
mod filesfrom;
mod filter;
mod itemize;
mod links;
mod messages;
mod place;
mod select;
mod tidy;
