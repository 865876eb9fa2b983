//! Evidence that a login is restricted: by a forced command, or by a shell that hides one.

use crate::env::Env;
use crate::fs::sys;

/// The most ancestors that are examined.
const ANCESTORS_MAX: usize = 64;
/// The most bytes of the environment of an ancestor that are read.
const ENVIRON_MAX_BYTES: usize = 4 << 20;
/// The variable that sshd sets where it runs another command than the client requested.
const ORIGINAL: &str = "SSH_ORIGINAL_COMMAND";

/// Returns the evidence that the login of this process is restricted; `None` if there is none.
///
/// sshd sets SSH_CONNECTION for every login. If it is missing although sshd, or a process that cannot be examined, is an
/// ancestor, then something on the way has removed it, and may have removed SSH_ORIGINAL_COMMAND as well. The processes on
/// the way still have the variables with which they were started.
pub fn evidence(env: &Env) -> Option<&'static str> {
    let way = LoginAncestry::of_process();
    if env.var(ORIGINAL).is_some() || way.has_original {
        return Some("the login has a forced command");
    }
    let is_hidden = env.var("SSH_CONNECTION").is_none() && way.may_begin_at_sshd;
    if is_hidden {
        return Some("the login hides SSH_CONNECTION, as restricted shells and forced commands do");
    }
    None
}

/// The processes between this one and the sshd that started it.
struct LoginAncestry {
    /// Whether one of them was started with SSH_ORIGINAL_COMMAND.
    has_original: bool,
    /// Whether sshd is an ancestor, or may be.
    may_begin_at_sshd: bool,
}

impl LoginAncestry {
    fn of_process() -> LoginAncestry {
        let mut way = LoginAncestry {
            has_original: false,
            may_begin_at_sshd: true,
        };
        let mut pid = std::os::unix::process::parent_id();
        for _ in 0..ANCESTORS_MAX {
            // The ancestors of a container are not visible.
            if pid == 0 {
                way.may_begin_at_sshd = false;
                break;
            }
            let stat = sys::read_kernel_file(format!("/proc/{pid}/stat").as_bytes(), 4096)
                .unwrap_or_default();
            let Some((name, parent)) = name_and_parent(&String::from_utf8_lossy(&stat)) else {
                break;
            };
            if is_sshd(&name) {
                break;
            }
            let variables =
                sys::read_kernel_file(format!("/proc/{pid}/environ").as_bytes(), ENVIRON_MAX_BYTES);
            let is_original = |variable: &[u8]| variable.starts_with(ORIGINAL.as_bytes());
            way.has_original |=
                variables.is_ok_and(|variables| variables.split(|&b| b == 0).any(is_original));
            pid = parent;
        }
        way
    }
}

/// Parses `/proc/PID/stat`: the number, the name in parentheses, the state, and the parent. The name may contain anything.
fn name_and_parent(stat: &str) -> Option<(String, u32)> {
    let (before, after) = stat.rsplit_once(')')?;
    let name = before.split_once('(')?.1.to_owned();
    Some((name, after.split_whitespace().nth(1)?.parse().ok()?))
}

/// Returns whether a process of this name accepts logins. The process of a session is `sshd-session` since OpenSSH 9.8.
fn is_sshd(name: &str) -> bool {
    name.starts_with("sshd") || name == "dropbear"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name_is() {
        let read = |stat| name_and_parent(stat);
        assert_eq!(read("7 (sh) S 5 7 7 0"), Some(("sh".into(), 5)));
        assert_eq!(read("7 (a) S 1 (b) S 5 7"), Some(("a) S 1 (b".into(), 5)));
        for bad in ["", "7 (sh) S", "7 sh S 5", "7 (sh) S x"] {
            assert_eq!(read(bad), None, "{bad}");
        }
        assert!(
            ["sshd", "sshd-session", "dropbear"]
                .into_iter()
                .all(is_sshd)
                && !is_sshd("sh")
        );
    }
}
