//! Checks the server of this user, and its grants.

use super::doctor_check::DoctorCheck;
use super::process::now;
use crate::cli::subcommand::Start;
use crate::cmd::server::{control_socket, listen, port_owner};
use crate::trust::files::List as _;
use crate::trust::grants::{Grant, Grants};
use crate::trust::paths::Places;

/// Checks the server of this user, and its grants.
pub(super) fn check(places: &Places) -> Vec<DoctorCheck> {
    let grants = Grants::load(places);
    let has_grants = grants
        .as_ref()
        .is_ok_and(|grants| !grants.grants.is_empty());
    let own_version = env!("CARGO_PKG_VERSION");
    let status = control_socket::status(places);
    let is_up = !matches!(status, Ok(None));
    let running = match status {
        Err(error) => DoctorCheck::of_error("server", &error),
        Ok(Some(status)) => {
            let facts = format!(
                "sparsync {}, process {}, at {}, {} sessions",
                status.sparsync,
                status.pid,
                status.addresses.join(" and "),
                status.sessions.len()
            );
            if status.sparsync == own_version {
                DoctorCheck::ok("server", facts)
            } else {
                DoctorCheck::warn("server", facts)
                    .with_hint("`sparsync server restart` starts this version")
            }
        }
        Ok(None) => match listen::pid(places) {
            Some(pid) => DoctorCheck::fail(
                "server",
                format!("process {pid} runs but has no control socket"),
            )
            .with_hint("`sparsync server stop --now` kills it"),
            None if has_grants => DoctorCheck::warn("server", "not running, but keys have grants")
                .with_hint("start it with `sparsync server start`"),
            None => DoctorCheck::ok("server", "not running"),
        },
    };
    let grants = match grants {
        Err(error) => vec![DoctorCheck::of_error("grants", &error)],
        Ok(grants) if grants.grants.is_empty() => vec![DoctorCheck::ok("grants", "none")],
        Ok(grants) => grants
            .grants
            .iter()
            .map(|grant| granted("grant", grant, &grant.name))
            .collect(),
    };
    let port = listen::port_of(places, &Start::default());
    let is_in_use = port_owner::is_in_use(port);
    let port = if is_up || port == 0 {
        None
    } else if is_in_use {
        let in_use = format!("{port} is in use by {}", listen::holder_of(port));
        Some(
            DoctorCheck::warn("port", in_use)
                .with_hint("choose another one with `sparsync server start --port=PORT`"),
        )
    } else {
        Some(DoctorCheck::ok("port", format!("{port} is free")))
    };
    std::iter::once(running).chain(port).chain(grants).collect()
}

pub(super) fn granted(name: &'static str, grant: &Grant, who: &str) -> DoctorCheck {
    let facts = format!("{who} {}", grant.rights(now()));
    if grant.stands(now()) {
        DoctorCheck::ok(name, facts)
    } else {
        DoctorCheck::warn(name, facts)
    }
}
