//! One binary for all tests that run the program.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "clippy.toml fences the program, not its tests"
)]

mod kit;

mod altdest;
mod attrs;
mod batch;
mod bench;
mod changing;
mod check;
mod checksum_cache;
mod clone_dest;
mod compress;
mod configured_paths;
mod confine_root;
mod copy;
mod cost;
mod daemon;
mod delete;
mod devices;
mod doctor;
mod enroll;
mod errors;
mod exit;
mod explain;
mod failed_list;
mod far_paths;
mod faults;
mod faults_far;
mod faults_net;
mod filesfrom;
mod filter;
mod fuzzy;
mod grants;
mod guard;
mod hash;
mod hostile;
mod iconv;
mod install;
mod itemize;
mod json;
mod limits;
mod links;
mod live;
mod local_options;
mod machine;
mod messages;
mod metrics;
mod mutated;
mod oneoff;
mod own_messages;
mod place;
mod plans;
mod protocols;
mod random;
mod recipes;
mod reconnect;
mod refused;
mod renamed;
mod resized;
mod rsyncd;
mod screens;
mod select;
mod server;
mod shell;
mod signals;
mod stock;
mod stock_server;
mod swapped;
mod tidy;
mod traffic;
mod trust_links;
mod turns;
mod verify;
