//! The directories for a user's keys, known hosts and grants, and for the state of a server.

use crate::env::Env;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::sys;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The two directories of a user on this machine. Neither needs to exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// Files that the user may read and edit: the key, `hosts.toml`, `grants.toml`. Absolute.
    pub config: PathBuf,
    /// Files that a server writes while it runs: its pid, its log. Absolute.
    pub state: PathBuf,
}

impl Places {
    /// Returns the directories of the user who runs this process.
    ///
    /// `SPARSYNC_CONFIG_DIR` replaces both. Otherwise root has `/etc/sparsync` and `/var/lib/sparsync`, and other users
    /// have the XDG directories. Fails if the user has no home directory.
    pub fn from_env(env: &Env) -> Result<Places> {
        let cwd = Path::new(OsStr::from_bytes(&env.cwd));
        Places::from(
            |name| env.var(name).filter(|value| !value.is_empty()),
            cwd,
            sys::ids().0 == 0,
        )
    }

    /// Returns the places of a file that belongs to the state, not to the configuration, such as a cache.
    pub fn only_state(&self) -> Places {
        Places {
            config: self.state.clone(),
            state: self.state.clone(),
        }
    }

    /// Returns whether the config directory is `root` or below it, also through symlinks.
    pub fn are_below(&self, root: &[u8]) -> bool {
        let Some(wanted) = sys::identity(OsStr::from_bytes(root)) else {
            return false;
        };
        let mut at = self.config.clone();
        let mut last = None;
        // At the root directory, `..` is the directory itself.
        while let Some(found) = sys::identity(at.as_os_str()).filter(|found| last != Some(*found)) {
            if found == wanted {
                return true;
            }
            last = Some(found);
            at.push("..");
        }
        false
    }

    fn from(var: impl Fn(&str) -> Option<OsString>, cwd: &Path, is_root: bool) -> Result<Places> {
        if let Some(config) = var("SPARSYNC_CONFIG_DIR") {
            let config = cwd.join(config);
            return Ok(Places {
                state: config.join("state"),
                config,
            });
        }
        if is_root {
            return Ok(Places {
                config: "/etc/sparsync".into(),
                state: "/var/lib/sparsync".into(),
            });
        }
        // XDG: a relative path must be ignored.
        let xdg = |name: &str, below_home: &str| -> Result<PathBuf> {
            if let Some(dir) = var(name).map(PathBuf::from).filter(|dir| dir.is_absolute()) {
                return Ok(dir.join("sparsync"));
            }
            let home = var("HOME")
                .map(PathBuf::from)
                .filter(|home| home.is_absolute())
                .ok_or_else(|| {
                    Error::new(
                        Exit::FileIo,
                        "sparsync: cannot find the directory for keys: HOME is not set",
                    )
                    .with_hint("set HOME or SPARSYNC_CONFIG_DIR")
                })?;
            Ok(home.join(below_home).join("sparsync"))
        };
        Ok(Places {
            config: xdg("XDG_CONFIG_HOME", ".config")?,
            state: xdg("XDG_STATE_HOME", ".local/state")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(vars: &[(&str, &str)], is_root: bool) -> Result<Places> {
        let var = |name: &str| {
            vars.iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| OsString::from(value))
        };
        Places::from(var, Path::new("/work"), is_root)
    }

    fn at(config: &str, state: &str) -> Places {
        Places {
            config: config.into(),
            state: state.into(),
        }
    }

    #[test]
    fn directories_depend_on_root_and_environment() {
        assert_eq!(
            places(&[("HOME", "/h")], false).unwrap(),
            at("/h/.config/sparsync", "/h/.local/state/sparsync")
        );
        assert_eq!(
            places(&[("HOME", "/h")], true).unwrap(),
            at("/etc/sparsync", "/var/lib/sparsync")
        );
        let xdg = [
            ("HOME", "/h"),
            ("XDG_CONFIG_HOME", "/c"),
            ("XDG_STATE_HOME", "relative"),
        ];
        assert_eq!(
            places(&xdg, false).unwrap(),
            at("/c/sparsync", "/h/.local/state/sparsync")
        );
        for is_root in [false, true] {
            assert_eq!(
                places(&[("SPARSYNC_CONFIG_DIR", "/x")], is_root).unwrap(),
                at("/x", "/x/state")
            );
            assert_eq!(
                places(&[("SPARSYNC_CONFIG_DIR", "x")], is_root).unwrap(),
                at("/work/x", "/work/x/state")
            );
        }
        let error = places(&[], false).unwrap_err();
        assert!(
            String::from_utf8_lossy(&error.text()).contains("SPARSYNC_CONFIG_DIR"),
            "{error}"
        );
    }
}
