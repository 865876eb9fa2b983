//! What a client looks at while it still connects.

use crate::cmd::copy::remote_copy::RemoteCopy;
use crate::cmd::input_files;
use crate::env::Env;
use crate::error::Result;
use crate::filter::Rules;
use crate::fs::sys;
use crate::native::dest_prescan::guessed_name;
use crate::native::shortcuts::Shortcuts;
use crate::options::CheckMode;
use crate::path::RelPath;

impl RemoteCopy {
    /// Returns the rules for a prefetch of the local tree, done while the client still connects; `None` if there must
    /// be none.
    ///
    /// The files that the rules name are read again for the session, so none may be standard input or a fifo. Under `-c` the
    /// prefetch would read an unbounded amount of content, unless it uses the digests of earlier runs.
    pub(super) fn prefetch_rules(&self, env: &Env) -> Option<Rules> {
        let select = &self.options.select;
        let may_look = select.files_from.is_none()
            && !input_files::name_files(&self.options)
            // Another user may see less.
            && self.options.copy_as.is_none()
            // Rules are confined only after those of the command line are read.
            && self.options.confine_root.is_none()
            // Whether the values of symlinks are converted is agreed on with the peer.
            && self.options.connect.iconv.is_none()
            && !self.far.is_child
            && (self.options.check.mode != CheckMode::Digest || self.options.checksum_cache.is_some());
        // Errors in the rules are reported when they are read again for the session.
        let read = may_look
            .then(|| input_files::rules(env, &self.options))
            .and_then(Result::ok)?;
        Some(self.own_rules(read))
    }

    /// Returns the rules in force at the client.
    pub(super) fn own_rules(&self, read: input_files::InputFiles) -> Rules {
        let select = &self.options.select;
        let delete = &self.options.delete;
        let is_limited = self.far.operand.server_sends && select.cvs_exclude && delete.excluded;
        let read = if is_limited {
            read.with_cvs_at_receiver()
        } else {
            read
        };
        read.rules(&self.options)
    }

    /// Guesses what a receiving client can prefetch while it connects: the one transferred directory whose digests the
    /// sender will compare, and the destination. `None` if there is nothing to prefetch.
    pub(super) fn guess(&self, env: &Env) -> Option<(RelPath, &[u8])> {
        if !self.far.operand.server_sends {
            return None;
        }
        let [argument] = self.far_paths() else {
            return None;
        };
        let dest = self.dest.as_ref()?;
        let has_log = self.options.output.log_file.is_some();
        let wants = self.wants(env, has_log);
        let compares = !self.lists_only() && Shortcuts::for_run(&self.options, wants).compare;
        if !compares {
            return None;
        }
        let whole = guessed_name(argument, &self.options)?;
        Some((whole, if dest.is_empty() { b"." } else { dest }))
    }

    /// Guesses whether the remote user is root. The handshake later brings the true answer.
    pub(super) fn is_likely_super(&self) -> bool {
        self.far
            .operand
            .user
            .as_deref()
            .map_or(sys::ids().0 == 0, |user| user == b"root")
    }
}
