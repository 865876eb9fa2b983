//! Writes the systemd unit that starts the server.

use super::control_socket::{self, Status};
use crate::cli::subcommand::{Install, Start};
use crate::cmd::command_end::write_text;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::{sys, trusted_path};
use crate::options::LinkOwners;
use crate::trust::files;
use crate::trust::paths::Places;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const NAME: &str = "sparsync.service";

/// Writes the unit, or prints it, and prints the commands that enable it.
pub fn install(env: &mut Env, places: &Places, wanted: &Install) -> Result<Exit> {
    let program = env.own_path().ok_or_else(|| {
        Error::new(
            Exit::Ipc,
            "sparsync: cannot write a unit: the path of this program is unknown",
        )
    })?;
    let program = plain(&program, "the path of this program")?;
    let is_root = sys::ids().0 == 0;
    let system = wanted.system.unwrap_or(is_root);
    let directory_variables = directory_variables(|name| env.var(name), places, system || is_root)?;
    let text = unit(program, &wanted.start, system, &directory_variables);
    if wanted.dry_run {
        write_text(&mut env.stdout, text.as_bytes())?;
        return Ok(Exit::Ok);
    }
    let dir = if system {
        PathBuf::from("/etc/systemd/system")
    } else {
        user_dir(env)?
    };
    write(&dir, &text)?;
    let path = dir.join(NAME);
    // A server that does not answer must not prevent the installation.
    let runs = control_socket::status(places).ok().flatten();
    let words = format!(
        "sparsync: wrote {}\n{}",
        path.display(),
        how_to_enable(system, runs.as_ref())
    );
    write_text(&mut env.stdout, words.as_bytes())?;
    Ok(Exit::Ok)
}

/// Returns the commands that make systemd run the server. `runs`: the server that runs now.
fn how_to_enable(system: bool, runs: Option<&Status>) -> String {
    let (systemctl, more) = if system {
        ("systemctl", SYSTEM_KEEPS)
    } else {
        (
            "systemctl --user",
            "To keep it running while you are not logged in:\n  loginctl enable-linger",
        )
    };
    let ends = match runs {
        Some(status) if !status.supervised => {
            format!(
                "  sparsync server stop  # process {}, not started by systemd\n",
                status.pid
            )
        }
        _ => String::new(),
    };
    let starts = match runs {
        // A running server keeps its old unit until it is restarted.
        Some(status) if status.supervised => {
            format!("  {systemctl} enable sparsync\n  {systemctl} restart sparsync\n")
        }
        _ => format!("  {systemctl} enable --now sparsync\n"),
    };
    format!("Enable it with:\n{ends}  {systemctl} daemon-reload\n{starts}{more}\n")
}

/// What the system unit denies to sessions. All other limits come from grants.
const SYSTEM_KEEPS: &str = "Its sessions read and write as root within their grants. They can never change /proc/sys, /sys, control groups,\n\
                            the clock, kernel modules or the host name, nor read the kernel log.";

/// Returns a path as text, or an error if it contains characters with a special meaning in units.
fn plain<'a>(path: &'a Path, what: &str) -> Result<&'a str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@".contains(c);
    path.to_str()
        .filter(|path| path.chars().all(is_plain))
        .ok_or_else(|| {
            let shown = path.display();
            let words =
                format!("sparsync: cannot write a unit: unsupported characters in {what}: {shown}");
            Error::new(Exit::Unsupported, words).with_hint("use only letters, digits and /._-+@")
        })
}

/// Returns the variables that locate keys, grants and the socket. systemd does not inherit them from a login.
fn directory_variables(
    var: impl Fn(&str) -> Option<OsString>,
    places: &Places,
    is_root: bool,
) -> Result<Vec<(&'static str, String)>> {
    const OVERALL: &str = "SPARSYNC_CONFIG_DIR";
    let non_empty = |name: &str| var(name).filter(|value| !value.is_empty());
    if non_empty(OVERALL).is_some() {
        return Ok(vec![(OVERALL, plain(&places.config, OVERALL)?.to_owned())]);
    }
    let by_user: &[&str] = if is_root {
        &[]
    } else {
        &["XDG_CONFIG_HOME", "XDG_STATE_HOME"]
    };
    let dirs = by_user
        .iter()
        .copied()
        .filter_map(|name| Some((name, non_empty(name).map(PathBuf::from)?)));
    let dirs = dirs.filter(|(_, dir)| dir.is_absolute());
    dirs.map(|(name, dir)| Ok((name, plain(&dir, name)?.to_owned())))
        .collect()
}

fn user_dir(env: &Env) -> Result<PathBuf> {
    let var = |name: &str| {
        env.var(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let config = var("XDG_CONFIG_HOME").or_else(|| var("HOME").map(|home| home.join(".config")));
    let config = config.ok_or_else(|| {
        Error::new(
            Exit::FileSelect,
            "sparsync: cannot write a unit: HOME is not set",
        )
    })?;
    Ok(config.join("systemd/user"))
}

fn write(dir: &Path, text: &str) -> Result<()> {
    // The directory belongs to systemd, so no lock file of ours may be left there.
    files::make_private(dir).map_err(|error| files::failed("create", dir, &error))?;
    trusted_path::open_dir(dir.as_os_str().as_bytes(), LinkOwners::Trusted)
        .and_then(|open| files::put(open.as_fd(), NAME, text.as_bytes(), 0o644))
        .map_err(|error| files::failed("write", &dir.join(NAME), &error))
}

/// Returns the text of the unit. Grants and the user decide what a session may reach; the unit only denies what no
/// session needs.
fn unit(
    program: &str,
    start: &Start,
    system: bool,
    directory_variables: &[(&str, String)],
) -> String {
    let mut words = format!("{program} server start --foreground");
    for address in &start.listen {
        words.push_str(&format!(" --listen={address}"));
    }
    if let Some(port) = start.port {
        words.push_str(&format!(" --port={port}"));
    }
    if let Some(bytes) = start.memory {
        words.push_str(&format!(" --memory={bytes}"));
    }
    // Reasons that prevent a start may go away: an address that is not there yet, a taken port, a server started by
    // hand.
    let mut text = String::from(
        "[Unit]\nDescription=sparsync server (QUIC and TLS)\nStartLimitIntervalSec=0\n",
    );
    if system {
        text.push_str("After=network-online.target\nWants=network-online.target\n");
    }
    text.push_str(&format!(
        "\n[Service]\nType=notify\nExecStart={words}\nRestart=on-failure\nRestartSec=2\n"
    ));
    for (name, place) in directory_variables {
        text.push_str(&format!("Environment=\"{name}={place}\"\n"));
    }
    // A server that is being stopped waits a minute for its sessions, which must not receive the signal themselves.
    text.push_str("KillMode=mixed\nTimeoutStopSec=90\nLimitNOFILE=65536\n\n");
    // None of these needs a namespace, so they also work in a user's unit.
    text.push_str(
        "NoNewPrivileges=yes\nLockPersonality=yes\nMemoryDenyWriteExecute=yes\nRestrictRealtime=yes\n\
         RestrictNamespaces=yes\nRestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK\n\
         SystemCallArchitectures=native\nSystemCallFilter=@system-service\n",
    );
    if system {
        // Only settings that no restore needs, and none that hides directories or limits device nodes, as
        // ProtectSystem=, ProtectKernelModules= and ProtectClock= would. The capabilities and the call filter cover
        // what those protect. `trusted.` attributes need CAP_SYS_ADMIN; the dangerous calls that it enables are
        // filtered out. CAP_SYS_RESOURCE: the owners of restored files may be over their quota. CAP_KILL: sessions may
        // run as the owner of their grant.
        text.push_str(
            "StateDirectory=sparsync\nStateDirectoryMode=0700\n\
             ProtectKernelTunables=yes\nProtectKernelLogs=yes\nProtectControlGroups=yes\nProtectHostname=yes\n\
             PrivateDevices=no\n\
             CapabilityBoundingSet=CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_FSETID CAP_KILL CAP_MKNOD \
             CAP_SETFCAP CAP_SETGID CAP_SETUID CAP_SYS_ADMIN CAP_SYS_RESOURCE CAP_NET_BIND_SERVICE\n",
        );
    }
    text.push_str(&format!(
        "\n[Install]\nWantedBy={}\n",
        if system {
            "multi-user.target"
        } else {
            "default.target"
        }
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_sets_the_directories_of_its_installer() {
        let places = Places {
            config: "/work/x".into(),
            state: "/work/x/state".into(),
        };
        let lines_for = |vars: &[(&str, &str)], is_root| {
            let var = |name: &str| {
                vars.iter()
                    .find(|(known, _)| *known == name)
                    .map(|(_, value)| OsString::from(value))
            };
            directory_variables(var, &places, is_root).map(|lines| {
                lines
                    .iter()
                    .map(|(name, at)| format!("{name}={at}"))
                    .collect()
            })
        };
        let of =
            |vars: &[(&str, &str)], is_root| -> Vec<String> { lines_for(vars, is_root).unwrap() };
        let xdg = [("XDG_CONFIG_HOME", "/c"), ("XDG_STATE_HOME", "/s")];
        assert_eq!(of(&xdg, false), ["XDG_CONFIG_HOME=/c", "XDG_STATE_HOME=/s"]);
        assert!(
            of(&xdg, true).is_empty(),
            "root does not use the XDG directories"
        );
        assert!(of(&[("XDG_CONFIG_HOME", "c"), ("XDG_STATE_HOME", "")], false).is_empty());
        let overall = [("SPARSYNC_CONFIG_DIR", "x"), xdg[0]];
        assert_eq!(
            [of(&overall, false), of(&overall, true)],
            [["SPARSYNC_CONFIG_DIR=/work/x"]; 2]
        );
        assert!(lines_for(&[("XDG_STATE_HOME", "/a b")], false).is_err());
    }
}
