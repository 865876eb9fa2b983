//! Names the route that a copy to a host takes, and why.

use super::doctor_check::DoctorCheck;
use crate::cmd::copy::route::{self, RoutePlan};
use crate::error::Result;
use crate::trust::peers::Transport;

/// Returns the route that a copy takes, and why. `reached`: the transports by which the server was reached, and why others
/// failed.
pub(super) fn route_check(
    plan: Result<RoutePlan>,
    reached: &[Transport],
    failed: Option<String>,
    ssh_works: bool,
) -> DoctorCheck {
    let failed = failed.unwrap_or_else(|| "no connection to the server".to_owned());
    let by_ssh = |why: &str| {
        if ssh_works {
            DoctorCheck::ok("route", format!("ssh: {why}"))
        } else {
            DoctorCheck::fail(
                "route",
                format!("none: {why}, and the ssh login does not work"),
            )
        }
    };
    // The host is enrolled, so its server should answer.
    let by_ssh_instead = |why: &str| {
        if ssh_works {
            DoctorCheck::warn("route", format!("ssh: {why}"))
        } else {
            by_ssh(why)
        }
    };
    match plan {
        Err(error) => DoctorCheck::of_error("route", &error),
        Ok(RoutePlan::Shell(why)) => by_ssh(why.unwrap_or("the host is not enrolled")),
        Ok(RoutePlan::ShellAfterTrouble(peer)) => by_ssh_instead(&route::earlier_trouble(&peer)),
        Ok(RoutePlan::EphemeralServer) => {
            if ssh_works {
                DoctorCheck::ok(
                    "route",
                    "QUIC to a server that ssh starts for each run: SPARSYNC_TRANSPORT is quic",
                )
            } else {
                DoctorCheck::fail("route", "none: ssh cannot start a server for the run")
            }
        }
        Ok(RoutePlan::Server {
            transports,
            or_shell,
            ..
        }) => match transports.iter().find(|kind| reached.contains(kind)) {
            Some(Transport::Quic) => {
                DoctorCheck::ok("route", "QUIC: the host is enrolled and its server answers")
            }
            Some(Transport::Tls) => {
                DoctorCheck::ok("route", "TLS: the host is enrolled and its server answers")
            }
            Some(Transport::Ssh) | None if or_shell => by_ssh_instead(&failed),
            Some(Transport::Ssh) | None => {
                DoctorCheck::fail("route", format!("none: {failed}, and ssh is not permitted"))
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::doctor::doctor_check::State;
    use crate::trust::Pin;
    use crate::trust::peers::Peer;
    use crate::trust::timestamp::Timestamp;

    #[test]
    fn route_is_the_first_reached_one() {
        let peer = Peer {
            name: "box".into(),
            ssh: "box".into(),
            addresses: vec!["192.0.2.1".into()],
            port: 1,
            pin: Pin([7; 32]),
            program: None,
            met: Timestamp(1),
            last_transport: None,
            last_until: None,
            last_trouble: None,
            is_limited: false,
        };
        let server = |or_shell| {
            Ok(RoutePlan::Server {
                peer: Box::new(peer.clone()),
                transports: vec![Transport::Quic, Transport::Tls],
                or_shell,
            })
        };
        for (plan, reached, ssh_works, state, begin) in [
            (
                server(true),
                &[Transport::Tls, Transport::Quic][..],
                true,
                State::Ok,
                "QUIC",
            ),
            (server(true), &[Transport::Tls], false, State::Ok, "TLS"),
            (server(true), &[], true, State::Warn, "ssh"),
            (server(true), &[], false, State::Fail, "none"),
            (server(false), &[], true, State::Fail, "none"),
            (
                Ok(RoutePlan::Shell(None)),
                &[],
                true,
                State::Ok,
                "ssh: the host is not enrolled",
            ),
            (
                Ok(RoutePlan::EphemeralServer),
                &[],
                false,
                State::Fail,
                "none",
            ),
        ] {
            let check = route_check(plan, reached, None, ssh_works);
            assert_eq!(
                (check.state, check.finding.starts_with(begin)),
                (state, true),
                "{}",
                check.finding
            );
        }
    }
}
