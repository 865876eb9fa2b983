//! Parses the arguments of `doctor`.

use super::command::{Doctor, RemoteHost, Verb};
use super::word_reader::{Argument, WordReader};
use crate::error::Result;
use std::os::unix::ffi::OsStringExt;

/// Parses the words after `doctor`.
pub fn read(words: &mut WordReader) -> Result<Verb> {
    let mut host = None::<String>;
    let mut path = None;
    let mut json = false;
    let mut shell = Vec::new();
    let mut program = None;
    while let Some(word) = words.word()? {
        let name = match word {
            Argument::Short('h') => return Ok(Verb::Help(Some("doctor"))),
            Argument::Short('e') => "rsh".to_owned(),
            Argument::Short(letter) => {
                return Err(words.wrong(&format!("unknown option -{letter}")));
            }
            Argument::Long(name) => name,
            Argument::Value(operand) => {
                let operand = operand
                    .into_string()
                    .map_err(|_| words.wrong("the host is not UTF-8"))?;
                if let Some(first) = &host {
                    return Err(words.wrong(&format!(
                        "unexpected argument `{operand}`: the host is `{first}` already"
                    )));
                }
                host = Some(words.host(&operand)?);
                continue;
            }
        };
        match name.as_str() {
            "help" => return Ok(Verb::Help(Some("doctor"))),
            "json" => json = true,
            "path" => path = Some(words.value("--path")?.into_vec()),
            "rsh" => shell = words.shell()?,
            "rsync-path" => program = Some(words.value("--rsync-path")?.into_vec()),
            other => return Err(words.unknown_option(other)),
        }
    }
    let host = match host {
        Some(host) => Some(RemoteHost {
            host,
            shell,
            program,
        }),
        None if !shell.is_empty() || program.is_some() => {
            return Err(words.wrong("-e and --rsync-path require a HOST"));
        }
        None => None,
    };
    Ok(Verb::Doctor(Box::new(Doctor { host, path, json })))
}
