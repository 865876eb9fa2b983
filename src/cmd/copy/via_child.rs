//! The server of a local copy: this program once more, connected by pipes, without a remote shell. It speaks rsync's own
//! protocol if a batch file records that.

use super::remote_copy::RemoteCopy;
use super::via_shell::RemoteProgram;
use crate::cmd::copy;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::proto::rsync::handshake::version_bytes;
use crate::report::event::errno_words;
use crate::rsync::newest_version;
use crate::transport::link::FAREWELL;
use crate::transport::shell::{Shell, ShellAnswer, ShellExit, Stderr};

/// This program. The kernel finds it also if its path cannot be searched by the user of `--copy-as`.
const OWN_PROGRAM: &[u8] = b"/proc/self/exe";

/// Starts the server, and returns its link once it has sent its first bytes. From then on, this process has the user of
/// `--copy-as`. All files that options name are open.
pub fn start(side: &RemoteCopy, env: &Env) -> Result<RemoteProgram> {
    copy::copy_as(&side.options, side.role())?;
    let confined = side
        .options
        .confine_root
        .as_ref()
        .map(|root| [b"--confine-root=", &root[..]].concat());
    // Of one program, both ends print.
    let names_charset =
        side.options.connect.iconv.is_some() && side.options.output.debug.iconv >= 1;
    let debug = names_charset.then(|| b"--debug=iconv".to_vec());
    let own = [OWN_PROGRAM.to_vec(), b"--server".to_vec()];
    let is_rsync = side.options.requires_rsync().is_some();
    let server_words = if is_rsync {
        side.rsync_words()
    } else {
        side.far.server_words.clone()
    };
    let words = [
        &own[..],
        &server_words,
        &side.far.remote_words,
        confined.as_slice(),
        debug.as_slice(),
    ];
    let paths = side.far_paths().iter().map(|path| {
        if path.starts_with(b"-") {
            [b"./", &path[..]].concat()
        } else {
            path.clone()
        }
    });
    let argv: Vec<_> = words
        .concat()
        .into_iter()
        .chain([b".".to_vec()])
        .chain(paths)
        .collect();
    let failed = |error: &std::io::Error| {
        let start = &b"sparsync: cannot start a process for the destination: "[..];
        Error::new(Exit::Ipc, [start, &errno_words(error)].concat()).by(side.role())
    };
    let mut shell =
        Shell::start(&argv, env.umask, Stderr::Inherited).map_err(|error| failed(&error))?;
    let version = version_bytes(newest_version(&side.options));
    match shell.answer(
        version,
        &side.patience(env),
        &mut std::io::sink(),
        &mut |_| {},
    ) {
        Ok(ShellAnswer::Native(link)) => Ok(RemoteProgram::Native(shell, link)),
        Ok(ShellAnswer::Rsync(link)) if is_rsync => Ok(RemoteProgram::Rsync(shell, link)),
        Ok(ShellAnswer::Rsync(_) | ShellAnswer::Silent | ShellAnswer::Mismatch) => {
            let ended = shell
                .wait(Some(FAREWELL), &env.stop)
                .unwrap_or(ShellExit::Killed);
            let words = format!(
                "rsync: connection unexpectedly closed (0 bytes received so far) [{}]",
                side.role()
            );
            Err(Error::new(ended.exit(), words).by(side.role()))
        }
        Ok(ShellAnswer::GaveUp(error)) | Err(error) => Err(failed(&error)),
    }
}
