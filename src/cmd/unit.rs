//! The unit by which systemd starts the server.

use super::say;
use crate::cli::verb::{Install, Start};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::sys;
use crate::trust::files;
use crate::trust::place::Places;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

const NAME: &str = "sparsync.service";

/// Writes the unit, or tells it, and says how it is enabled.
pub fn install(env: &mut Env, places: &Places, wanted: &Install) -> Result<Exit> {
    let program = env.own_path().ok_or_else(|| Error::new(Exit::Ipc, "sparsync: this program has no path"))?;
    let program = program.to_str().filter(|path| path.chars().all(is_plain)).ok_or_else(|| {
        Error::new(Exit::Unsupported, "sparsync: the path of this program has letters that a unit cannot hold")
    })?;
    let other_place = env.var("SPARSYNC_CONFIG_DIR").map(|_| places.config.display().to_string());
    let text = unit(program, &wanted.start, wanted.system, other_place.as_deref());
    if wanted.dry_run {
        say(&mut env.stdout, text.as_bytes())?;
        return Ok(Exit::Ok);
    }
    let dir = if wanted.system { PathBuf::from("/etc/systemd/system") } else { user_dir(env)? };
    write(&dir, &text)?;
    let path = dir.join(NAME);
    let (systemctl, more) = match wanted.system {
        true => ("systemctl", ""),
        false => ("systemctl --user", "\nand, if it shall run while you are not logged in:\n  loginctl enable-linger"),
    };
    let shown = path.display();
    let words = format!(
        "sparsync: wrote {shown}\nEnable it with:\n  {systemctl} daemon-reload\n  {systemctl} enable --now sparsync{more}\n"
    );
    say(&mut env.stdout, words.as_bytes())?;
    Ok(Exit::Ok)
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "/._-+@".contains(c)
}

fn user_dir(env: &Env) -> Result<PathBuf> {
    let var = |name: &str| env.var(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let config = var("XDG_CONFIG_HOME").or_else(|| var("HOME").map(|home| home.join(".config")));
    let config = config.ok_or_else(|| Error::new(Exit::FileSelect, "sparsync: HOME is not set: where do units go?"))?;
    Ok(config.join("systemd/user"))
}

fn write(dir: &std::path::Path, text: &str) -> Result<()> {
    // It is systemd's directory, where a lock of ours would be litter.
    files::make_private(dir).map_err(|error| files::failed("make", dir, &error))?;
    sys::open_dir_path(dir.as_os_str().as_bytes())
        .and_then(|open| files::put(open.as_fd(), NAME, text.as_bytes(), 0o644))
        .map_err(|error| files::failed("write", &dir.join(NAME), &error))
}

/// The text. What a session may reach is its grant's and its user's; what no session needs is taken from all.
fn unit(program: &str, start: &Start, system: bool, other_place: Option<&str>) -> String {
    let mut words = format!("{program} server start --foreground");
    for address in &start.listen {
        words.push_str(&format!(" --listen={address}"));
    }
    if let Some(port) = start.port {
        words.push_str(&format!(" --port={port}"));
    }
    let mut text = String::from("[Unit]\nDescription=sparsync server (QUIC and TLS)\n");
    if system {
        text.push_str("After=network-online.target\nWants=network-online.target\n");
    }
    text.push_str(&format!("\n[Service]\nExecStart={words}\nRestart=on-failure\nRestartSec=2\n"));
    if let Some(place) = other_place {
        text.push_str(&format!("Environment=\"SPARSYNC_CONFIG_DIR={place}\"\n"));
    }
    // A server that is told to end waits a minute for its sessions.
    text.push_str("TimeoutStopSec=90\nLimitNOFILE=65536\n\n");
    // None of these needs a namespace, so they hold for a user's unit, too.
    text.push_str(
        "NoNewPrivileges=yes\nLockPersonality=yes\nMemoryDenyWriteExecute=yes\nRestrictRealtime=yes\n\
         RestrictNamespaces=yes\nRestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK\n\
         SystemCallArchitectures=native\nSystemCallFilter=@system-service\n",
    );
    if system {
        text.push_str(
            "ProtectSystem=full\nReadWritePaths=-/etc/sparsync\nStateDirectory=sparsync\nStateDirectoryMode=0700\n\
             ProtectKernelTunables=yes\nProtectKernelModules=yes\nProtectKernelLogs=yes\nProtectControlGroups=yes\n\
             ProtectClock=yes\nProtectHostname=yes\nPrivateDevices=no\n\
             CapabilityBoundingSet=CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_FSETID CAP_MKNOD \
             CAP_SETFCAP CAP_SETGID CAP_SETUID CAP_NET_BIND_SERVICE\n",
        );
    }
    text.push_str(&format!("\n[Install]\nWantedBy={}\n", if system { "multi-user.target" } else { "default.target" }));
    text
}
