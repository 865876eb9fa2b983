//! The client's end of a session, and what it requests.

use super::session_transport::SessionTransport;
use crate::cmd::copy::Prepared;
use crate::cmd::copy::remote_copy::RemoteCopy;
use crate::cmd::{copy, input_files};
use crate::env::Env;
use crate::filter::Parsed;
use crate::native::client::NativeClient;
use crate::native::compression_choice;
use crate::options::ArgStyle;
use crate::options::output::Ui;
use crate::proto::message::TAKES_TOTALS;
use crate::proto::{ProtocolSupport, Setup};
use crate::report::event::Wants;
use crate::session::client::Client;

/// How the remote side learns its own paths.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Paths {
    /// Inside the session, in `Setup`.
    InSetup,
    /// From its command line.
    OnCommandLine,
}

impl RemoteCopy {
    /// Returns the protocol versions and features of this program in this run.
    pub(super) fn support(&self) -> ProtocolSupport {
        let mut support = ProtocolSupport::ours(compression_choice::features(None));
        let has_display = self.options.output.ui != Ui::Off;
        if has_display && self.far.operand.server_sends {
            support.features |= TAKES_TOTALS;
        }
        support
    }

    /// Returns how a remote side that a remote shell starts learns its paths.
    pub(super) fn paths_by_shell(&self) -> Paths {
        // A daemon has its arguments before the session.
        let is_in_setup =
            self.options.connect.args == ArgStyle::Secluded && self.far.operand.daemon.is_none();
        if is_in_setup {
            Paths::InSetup
        } else {
            Paths::OnCommandLine
        }
    }

    pub(super) fn paths_by(&self, transport: &SessionTransport) -> Paths {
        if matches!(transport, SessionTransport::Net(_)) {
            Paths::InSetup
        } else {
            self.paths_by_shell()
        }
    }

    /// Returns what the reporter of this run will need.
    pub(super) fn wants(&self, env: &Env, has_log: bool) -> Wants {
        let sends = !self.far.operand.server_sends;
        copy::wants(env, &self.options, has_log, self.lists_only(), sends)
    }

    /// Returns the client's end of the session before there is a reporter.
    pub(super) fn client_of<'s>(
        &'s self,
        env: &'s Env,
        prepared: &Prepared,
        paths: Paths,
    ) -> NativeClient<'s> {
        let Prepared { rules, listed, log } = prepared;
        let has_log = log.as_ref().is_ok_and(Option::is_some);
        let wants = self.wants(env, has_log);
        self.near(env, rules, listed, wants, paths)
    }

    /// Returns the client's end of the session.
    pub(super) fn near<'s>(
        &'s self,
        env: &'s Env,
        rules: &input_files::InputFiles,
        listed: &Option<Vec<Vec<u8>>>,
        wants: Wants,
        paths: Paths,
    ) -> NativeClient<'s> {
        let sends = !self.far.operand.server_sends;
        let profile = env.var("SPARSYNC_PROFILE").is_some_and(|on| on == "1");
        let client = Client {
            options: &self.options,
            setup: self.setup(
                rules,
                listed,
                wants,
                profile,
                paths == Paths::InSetup,
                env.umask,
            ),
            rules: self.own_rules(rules.clone()),
            listed: if sends { listed.clone() } else { None },
            sources: self.sources_at_sender(),
            dest: if sends || self.options.select.list_only {
                None
            } else {
                self.dest.clone()
            },
            process: copy::process(env),
            repeats: false,
            interrupted: &env.stop_requested,
            is_net: false,
            is_local: self.far.is_child,
            gauge: None,
        };
        NativeClient {
            client,
            key: self.key,
            support: self.support(),
            headway: Default::default(),
        }
    }

    pub(super) fn setup(
        &self,
        rules: &input_files::InputFiles,
        listed: &Option<Vec<Vec<u8>>>,
        wants: Wants,
        profile: bool,
        paths_in_setup: bool,
        umask: u32,
    ) -> Setup {
        let reads_cvs = self.options.select.cvs_exclude
            || rules
                .parsed
                .iter()
                .any(|parsed| matches!(parsed, Parsed::Cvs(_) | Parsed::Merge(_)));
        // A receiver that reports its own events does not know the sender's paths.
        let wants = Wants {
            paths: wants.paths && !self.far.operand.server_sends,
            ..wants
        };
        let mut words = self.far.words.clone();
        if paths_in_setup && self.options.connect.args == ArgStyle::Secluded {
            // It decides how the server expands the paths.
            words.push(b"--secluded-args".to_vec());
        }
        Setup {
            server_sends: self.far.operand.server_sends,
            words,
            remote_words: self.far.remote_words.clone(),
            rules: if self.far.operand.server_sends {
                Parsed::for_sender(&rules.parsed)
            } else {
                rules.parsed.clone()
            },
            cvs_home: if reads_cvs {
                rules.cvs_home.clone()
            } else {
                None
            },
            cvs_env: if reads_cvs {
                rules.cvs_env.clone()
            } else {
                None
            },
            listed: if self.far.operand.server_sends {
                listed.clone()
            } else {
                None
            },
            operands: if paths_in_setup {
                self.far_paths().to_vec()
            } else {
                Vec::new()
            },
            wants,
            profile,
            umask,
        }
    }
}
