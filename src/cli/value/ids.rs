//! `--usermap`, `--groupmap`, and the maps that `--chown` sets.

use crate::error::{Error, Result};
use crate::options::{IdFrom, IdMap, IdTo};

/// Parses the map of the option `name` (`usermap`, `groupmap`).
///
/// The receiver looks up the names later. Errors name the Receiver as their role, because rsync parses the map there.
pub fn parse(text: &[u8], name: &str) -> Result<Vec<IdMap>> {
    text.split(|&b| b == b',')
        .map(|pair| parse_pair(pair, name))
        .collect()
}

fn parse_pair(pair: &[u8], name: &str) -> Result<IdMap> {
    let refused = |why: &str, what: &[u8]| {
        let mut message = why.as_bytes().to_vec();
        message.extend_from_slice(&super::printable(what));
        Error::usage(message).by("Receiver")
    };
    let Some(colon) = pair.iter().position(|&b| b == b':') else {
        return Err(refused(&format!("No colon found in --{name}: "), pair));
    };
    let from = &pair[..colon];
    let to = &pair[colon + 1..];
    if to.is_empty() {
        return Err(refused(
            &format!("No name found after colon --{name}: "),
            pair,
        ));
    }
    let number = |text: &[u8]| match std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
    {
        Some(id) => Ok::<u32, Error>(id),
        None => Err(refused("Invalid ID number: ", text)),
    };
    let is_number = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let from = match from.iter().position(|&b| b == b'-') {
        _ if is_number(from) => IdFrom::Range(number(from)?, number(from)?),
        Some(dash) if is_number(&from[..dash]) => {
            if !is_number(&from[dash + 1..]) {
                return Err(refused(&format!("Invalid number in --{name}: "), from));
            }
            IdFrom::Range(number(&from[..dash])?, number(&from[dash + 1..])?)
        }
        _ => IdFrom::Name(from.to_vec()),
    };
    let to = if is_number(to) {
        IdTo::Id(number(to)?)
    } else {
        IdTo::Name(to.to_vec())
    };
    Ok(IdMap { from, to })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_maps_are_parsed() {
        let maps = parse(b"0:1,5-9:x,*:y,:9", "usermap").unwrap();
        assert_eq!(
            maps[0],
            IdMap {
                from: IdFrom::Range(0, 0),
                to: IdTo::Id(1)
            }
        );
        assert_eq!(
            maps[1],
            IdMap {
                from: IdFrom::Range(5, 9),
                to: IdTo::Name(b"x".to_vec())
            }
        );
        assert_eq!(maps[2].from, IdFrom::Name(b"*".to_vec()));
        assert_eq!(maps[3].from, IdFrom::Name(Vec::new()));
    }

    #[test]
    fn invalid_id_maps_have_rsyncs_errors() {
        for (text, message) in [
            ("", "No colon found in --usermap: "),
            ("a", "No colon found in --usermap: a"),
            ("a:", "No name found after colon --usermap: a:"),
            ("1-:1", "Invalid number in --usermap: 1-"),
            ("1-x:1", "Invalid number in --usermap: 1-x"),
            ("0:1,2", "No colon found in --usermap: 2"),
            ("99999999999:1", "Invalid ID number: 99999999999"),
        ] {
            let error = parse(text.as_bytes(), "usermap").unwrap_err();
            assert_eq!(error.message, message.as_bytes());
            assert_eq!(error.role, "Receiver");
        }
    }
}
