//! What a client sends before all else: the filter rules that the server needs, and names of `--files-from`.

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::filter::{self, Parsed};
use crate::options::{Options, Place};
use crate::proto::Setup;
use crate::proto::rsync::filter_list::{self, RuleKind, WireRule};
use crate::proto::rsync::handshake;
use crate::rsync::before_session;
use crate::rsync::client::RsyncClient;
use crate::rsync::error::undecodable as failed;
use crate::rsync::framing::Framing;
use crate::rsync::session_terms::RsyncTerms;
use std::borrow::Cow;

impl RsyncClient<'_> {
    /// Returns what a client sends before all else: the filter rules that the server needs, and then the names of
    /// `--files-from` in `listed`.
    pub(super) fn opening(
        &self,
        listed: Option<&[Vec<u8>]>,
        terms: &RsyncTerms,
    ) -> Result<Vec<u8>> {
        let framing = Framing::of_client(terms);
        // There may be millions of rules, so they are held only once more.
        let mut out = Vec::new();
        let mut data = Vec::new();
        for rule in self.wire_rules(terms.protocol) {
            filter_list::encode_rule(&rule?, terms.protocol, &mut data).map_err(failed)?;
            if data.len() >= RULES_PIECE_BYTES {
                framing.data(&data, &mut out);
                data.clear();
            }
        }
        filter_list::encode_rules_end(&mut data);
        framing.data(&data, &mut out);
        framing.names(
            &listed.map_or_else(Vec::new, before_session::encode_names),
            &mut out,
        );
        Ok(out)
    }

    /// Returns the filter rules that the server needs; an error for one that the protocol lacks. A server that sends adds
    /// the rules of `-C` itself.
    pub(super) fn wire_rules(&self, protocol: u8) -> impl Iterator<Item = Result<WireRule>> {
        let setup = &self.client.setup;
        let select = &self.client.options.select;
        // The rules of `-C` are the last ones.
        let cvs_count = if select.cvs_exclude {
            filter::cvs_rules(setup.cvs_home.as_deref(), setup.cvs_env.as_deref()).len()
        } else {
            0
        };
        let (given, of_cvs) = setup.rules.split_at(setup.rules.len() - cvs_count);
        let is_clear = |rule: &Parsed| matches!(rule, Parsed::Clear);
        let first = given.iter().rposition(is_clear).map_or(0, |at| at + 1);
        let of_cvs = if setup.server_sends { &[] } else { of_cvs };

        let target = RuleTarget::new(setup, self.client.options, protocol);
        let given = given[first..].iter().map(|rule| (rule, RuleOrigin::Given));
        let of_cvs = of_cvs.iter().map(|rule| (rule, RuleOrigin::OptionC));
        let rules = given.chain(of_cvs).flat_map(|(rule, origin)| {
            let rules = expanded(rule, setup).into_iter();
            rules.map(move |rule| (rule, origin))
        });
        rules.filter_map(move |(rule, origin)| target.wire_rule(&rule, origin).transpose())
    }
}

/// Returns what is sent for a rule: itself, or in place of a `-C` between other rules, as in rsync, the patterns of the
/// client.
fn expanded<'a>(rule: &'a Parsed, setup: &Setup) -> Vec<Cow<'a, Parsed>> {
    let Parsed::Cvs(cvs) = rule else {
        return vec![Cow::Borrowed(rule)];
    };
    let patterns = filter::cvs_globals(cvs, setup.cvs_home.as_deref(), setup.cvs_env.as_deref());
    patterns
        .into_iter()
        .map(|rule| Cow::Owned(Parsed::Rule(rule)))
        .collect()
}

/// Where a rule comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RuleOrigin {
    /// From the command line or a file of rules.
    Given,
    /// The option `-C` has added it.
    OptionC,
}

/// What decides how rules are sent to a server.
struct RuleTarget {
    protocol: u8,
    server_sends: bool,
    deletes_excluded: bool,
    /// The rule that hides partial directories, which an option has added.
    of_partials: Option<Vec<u8>>,
}

impl RuleTarget {
    fn new(setup: &Setup, options: &Options, protocol: u8) -> RuleTarget {
        RuleTarget {
            protocol,
            server_sends: setup.server_sends,
            deletes_excluded: options.delete.excluded,
            of_partials: Place::partials_rule(options.place.partial_dir.as_deref()),
        }
    }

    /// Returns a rule as it is sent; `None` if the server does not need it.
    ///
    /// # Errors
    ///
    /// If the rule cannot be expressed in the protocol.
    fn wire_rule(&self, rule: &Parsed, origin: RuleOrigin) -> Result<Option<WireRule>> {
        let text = if self.server_sends {
            rule.text_for_sender(self.deletes_excluded)
        } else {
            rule.text_for_receiver(self.deletes_excluded)
        };
        let Some(text) = text else {
            return Ok(None);
        };
        let rule = WireRule::parse(&text, *handshake::VERSIONS.end()).map_err(failed)?;
        let is_merge_of_cvs = origin == RuleOrigin::OptionC
            && rule.kind == RuleKind::DirMerge
            && rule.modifiers.contains(&b'C');
        // Before protocol 29, a server adds the rule for the files of `-C` itself.
        if self.protocol < 29 && is_merge_of_cvs {
            return Ok(None);
        }

        // A sender need not know whether a rule is perishable, and the rules of options lose this word.
        let may_lose_perishable = self.server_sends
            || origin == RuleOrigin::OptionC
            || self.of_partials.as_ref() == Some(&text);
        let needs_perishable =
            self.protocol < 30 && rule.modifiers.contains(&b'p') && !may_lose_perishable;
        // Before protocol 29, sides are left out, but not if they matter.
        let needs_sides = self.protocol < 29 && !self.server_sends && self.deletes_excluded;
        if needs_perishable || needs_sides || rule.text(self.protocol).is_err() {
            return Err(Error::new(
                Exit::Protocol,
                "filter rules are too modern for remote rsync.",
            ));
        }
        Ok(Some(rule))
    }
}

/// Returns whether a client sends rules to a server that receives. It needs them only if it deletes, but not if it also
/// deletes what they exclude: before protocol 29, they have no sides.
pub(super) fn receiver_needs_rules(options: &Options, protocol: u8) -> bool {
    let deletes_all = protocol < 29 && options.delete.excluded;
    options.delete.when.is_some() && !deletes_all || options.select.prune_empty_dirs
}

/// How many bytes of rules are put into frames at a time.
const RULES_PIECE_BYTES: usize = 32 << 10;
