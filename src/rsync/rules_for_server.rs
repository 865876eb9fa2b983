//! What a client sends before all else: the filter rules that the server needs, and names of `--files-from`.

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::filter::{self, Parsed};
use crate::options::{Options, Place};
use crate::proto::Setup;
use crate::proto::rsync::filter_list::{self, RuleKind, WireRule};
use crate::proto::rsync::handshake;
use crate::proto::rsync::limits::PATH_MAX_BYTES;
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
        let Setup {
            rules: parsed,
            cvs_home,
            cvs_env,
            server_sends,
            ..
        } = &self.client.setup;
        let options = &self.client.options;
        let of_cvs = if options.select.cvs_exclude {
            filter::cvs_rules(cvs_home.as_deref(), cvs_env.as_deref()).len()
        } else {
            0
        };
        let given = parsed.len() - of_cvs;
        let count = if *server_sends { given } else { parsed.len() };
        let first = parsed[..count]
            .iter()
            .rposition(|parsed| matches!(parsed, Parsed::Clear))
            .map_or(0, |at| at + 1);
        let of_partials = Place::partials_rule(options.place.partial_dir.as_deref());
        let deletes_excluded = options.delete.excluded;
        let text_of = move |rule: &Parsed| {
            if *server_sends {
                rule.text_for_sender(deletes_excluded)
            } else {
                rule.text_for_receiver(deletes_excluded)
            }
        };
        // As in rsync, `-C` stands for the patterns of the client.
        let patterns_of = |parsed: &Parsed| match parsed {
            Parsed::Cvs(cvs) => filter::cvs_globals(cvs, cvs_home.as_deref(), cvs_env.as_deref()),
            _ => Vec::new(),
        };
        let expanded = (first..count)
            .zip(&parsed[first..count])
            .flat_map(move |(at, parsed)| {
                let whole = Some(Cow::Borrowed(parsed))
                    .filter(|parsed| !matches!(**parsed, Parsed::Cvs(_)));
                let patterns = patterns_of(parsed)
                    .into_iter()
                    .map(|rule| Cow::Owned(Parsed::Rule(rule)));
                whole
                    .into_iter()
                    .chain(patterns)
                    .map(move |parsed| (at, parsed))
            });
        expanded.filter_map(move |(at, parsed)| {
            let text = text_of(&parsed)?;
            let rule = match WireRule::parse(&text, *handshake::VERSIONS.end()) {
                Ok(rule) => rule,
                Err(error) => return Some(Err(failed(error))),
            };
            // rsync discards these when it reads them.
            if rule.pattern.len() > PATH_MAX_BYTES {
                return None;
            }
            // Before protocol 29, a server adds the rule for the files of `-C` itself.
            if protocol < 29
                && at >= given
                && rule.kind == RuleKind::DirMerge
                && rule.modifiers.contains(&b'C')
            {
                return None;
            }
            // A sender need not know whether a rule is perishable, and the rules of options lose this word.
            let may_stay = *server_sends || at >= given || of_partials.as_ref() == Some(&text);
            let is_modern = protocol < 30 && rule.modifiers.contains(&b'p') && !may_stay;
            // Before protocol 29, sides are left out, but not if they matter.
            let needs_sides = protocol < 29 && !server_sends && deletes_excluded;
            if is_modern || needs_sides || rule.text(protocol).is_err() {
                return Some(Err(Error::new(
                    Exit::Protocol,
                    "filter rules are too modern for remote rsync.",
                )));
            }
            Some(Ok(rule))
        })
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
