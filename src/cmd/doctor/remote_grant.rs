//! Checks the grant that a host has for the key of this machine.

use super::ask::ask;
use super::doctor_check::{DoctorCheck, State};
use super::server::granted;
use crate::cli::subcommand::{RemoteHost, ServerAction};
use crate::cmd::enroll;
use crate::env::Env;
use crate::transport::shell::ShellExit;
use crate::trust::Pin;
use crate::trust::enroll_reply::last_line;
use crate::trust::grants::Grant;
use crate::trust::timestamp::Timestamp;
use serde::Deserialize;

/// A grant as `server grants --json` prints it.
#[derive(Deserialize)]
struct RemoteGrant {
    name: String,
    pin: Pin,
    roots: Vec<String>,
    read_only: bool,
    expires: Option<Timestamp>,
    allow_setuid: bool,
    no_munge: bool,
    owner: Option<String>,
}

/// Requests the grants of the host over ssh, and finds that of this machine's key.
pub(super) fn own_grant(env: &Env, reach: &RemoteHost, pin: &Pin) -> DoctorCheck {
    let argv = enroll::argv(reach, &ServerAction::Grants { json: true }.words());
    let grants = match ask(env, &argv) {
        Ok((ShellExit::Code(0), text)) => {
            serde_json::from_str::<Vec<RemoteGrant>>(last_line(&text))
        }
        _ => {
            return DoctorCheck::warn(
                "grant there",
                "unknown: `sparsync server grants` failed there",
            );
        }
    };
    let Ok(grants) = grants else {
        return DoctorCheck::warn(
            "grant there",
            "unknown: the sparsync there has another version",
        );
    };
    let Some(own) = grants.into_iter().find(|grant| grant.pin == *pin) else {
        return DoctorCheck::warn("grant there", "none for this machine's key")
            .with_hint(format!("run `sparsync enroll {}`", reach.host));
    };
    let RemoteGrant {
        name,
        pin,
        roots,
        read_only,
        expires,
        allow_setuid,
        no_munge,
        owner,
    } = own;
    let roots = roots.into_iter().map(String::into_bytes).collect();
    let grant = Grant {
        pin,
        name,
        roots,
        read_only,
        expires,
        allow_setuid,
        no_munge,
        owner,
    };
    let check = granted("grant there", &grant, "this machine");
    match check.state {
        State::Ok => check,
        State::Warn | State::Fail => {
            check.with_hint(format!("run `sparsync enroll --no-expiry {}`", reach.host))
        }
    }
}
