//! Encoding of filter rules.

use crate::error::Result;
use crate::filter::{Cvs, Merge, Parsed, Rule, Text};
use crate::proto::bytes::{Reader, Writer};
use crate::proto::enum_values::rule;
use crate::proto::limits::{WORD_MAX_BYTES, WORDS_MAX};

pub(super) fn put_parsed(w: &mut Writer, parsed: &Parsed) -> Result<()> {
    match parsed {
        Parsed::Rule(Rule {
            include,
            sides,
            absolute,
            negate,
            perishable,
            xattr,
            pattern,
            from_file,
        }) => {
            w.byte(rule::RULE);
            w.flags(&[
                *include,
                *absolute,
                *negate,
                *perishable,
                *xattr,
                *from_file,
            ]);
            w.number(*sides);
            w.bytes("pattern", pattern, WORD_MAX_BYTES)
        }
        Parsed::Clear => {
            w.byte(rule::CLEAR);
            Ok(())
        }
        Parsed::Merge(merge) => {
            let Merge {
                name,
                per_dir,
                format,
                no_inherit,
                word_split,
                ..
            } = &**merge;
            let Merge {
                exclude_itself,
                sides,
                absolute,
                perishable,
                xattr,
                named_at,
                ..
            } = &**merge;
            w.byte(rule::MERGE);
            w.flags(&[
                *per_dir,
                *no_inherit,
                *word_split,
                *exclude_itself,
                *absolute,
                *perishable,
                *xattr,
                named_at.is_some(),
            ]);
            w.number(*format);
            w.number(*sides);
            w.bytes("name of a merge file", name, WORD_MAX_BYTES)?;
            match named_at {
                Some(place) => w.bytes("place of a merge file", place, WORD_MAX_BYTES),
                None => Ok(()),
            }
        }
        Parsed::Cvs(Cvs {
            include,
            sides,
            absolute,
            negate,
            perishable,
            from_file,
        }) => {
            w.byte(rule::CVS);
            w.flags(&[*include, *absolute, *negate, *perishable, *from_file]);
            w.number(*sides);
            Ok(())
        }
        Parsed::Nothing | Parsed::TooLong(_) => {
            w.byte(rule::NOTHING);
            Ok(())
        }
    }
}

/// How many rules share a text.
const SHARING_RULES: usize = 1024;

pub(super) fn get_rules(r: &mut Reader) -> Result<Vec<Parsed>> {
    let count = r.count("rules", WORDS_MAX, 1)?;
    let mut rules = Vec::new();
    while rules.len() < count {
        let start = rules.len();
        for _ in 0..SHARING_RULES.min(count - start) {
            rules.push(get_parsed(r)?);
        }
        Text::share(&mut rules[start..]);
    }
    Ok(rules)
}

fn get_parsed(r: &mut Reader) -> Result<Parsed> {
    Ok(match r.byte("rule")? {
        rule::RULE => {
            let [include, absolute, negate, perishable, xattr, from_file] =
                r.flags::<6>("rule flags")?;
            let sides = r.number("sides")?;
            let pattern = r.owned("pattern", WORD_MAX_BYTES)?.into();
            Parsed::Rule(Rule {
                include,
                sides,
                absolute,
                negate,
                perishable,
                xattr,
                pattern,
                from_file,
            })
        }
        rule::CLEAR => Parsed::Clear,
        rule::MERGE => {
            let [
                per_dir,
                no_inherit,
                word_split,
                exclude_itself,
                absolute,
                perishable,
                xattr,
                has_place,
            ] = r.flags::<8>("merge flags")?;
            if !per_dir {
                return Err(r.refuse("rule", "is a merge file that the client reads"));
            }
            Parsed::Merge(Box::new(Merge {
                per_dir,
                no_inherit,
                word_split,
                exclude_itself,
                absolute,
                perishable,
                xattr,
                format: r.number("merge format")?,
                sides: r.number("sides")?,
                name: r.owned("name of a merge file", WORD_MAX_BYTES)?,
                named_at: r.when(has_place, |r| {
                    r.owned("place of a merge file", WORD_MAX_BYTES)
                })?,
            }))
        }
        rule::CVS => {
            let [include, absolute, negate, perishable, from_file] = r.flags::<5>("rule flags")?;
            Parsed::Cvs(Cvs {
                include,
                sides: r.number("sides")?,
                absolute,
                negate,
                perishable,
                from_file,
            })
        }
        rule::NOTHING => Parsed::Nothing,
        number => return Err(r.unknown("rule", number)),
    })
}
