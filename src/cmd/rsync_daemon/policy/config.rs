//! Parses rsyncd.conf: sections, parameters, directives, continued lines.

use super::params::{Param, ParamValue, Values, VarLookup, expand};
use crate::cli::value::chmod;
use crate::report::event::errno_words;
use std::io;

/// The most bytes of a configuration file.
pub const CONFIG_MAX_BYTES: usize = 16 << 20;
/// The most levels of files that include files.
const INCLUDE_DEPTH_MAX: usize = 32;
/// The most modules.
const MODULES_MAX: usize = 100_000;

/// Reads the files of a configuration.
pub trait ConfigFiles {
    /// Reads a whole file.
    fn read(&self, path: &[u8]) -> io::Result<Vec<u8>>;

    /// Returns the names in a directory; `None` if the path is no directory.
    fn names(&self, path: &[u8]) -> io::Result<Option<Vec<Vec<u8>>>>;
}

/// A module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// The name by which clients know it.
    pub name: Vec<u8>,
    /// Its parameters, with the defaults that were in force where it began, and texts that were set later.
    pub values: Values,
}

/// A configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Config {
    /// The global parameters, and the values of the global section.
    pub globals: Values,
    /// The modules in order.
    pub modules: Vec<Module>,
    /// Lines for the log: what was ignored, with file and line.
    pub complaints: Vec<Vec<u8>>,
}

impl Config {
    /// Finds a module by its exact name.
    pub fn module(&self, name: &[u8]) -> Option<&Module> {
        self.modules.iter().find(|module| module.name == name)
    }
}

/// Where a parameter applies at a place in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConfigSection {
    Global,
    Module(usize),
}

/// Reads a configuration.
pub struct ConfigReader<'a> {
    files: &'a dyn ConfigFiles,
    vars: VarLookup<'a>,
    /// Parameters of the command line, which the global section does not change.
    overrides: &'a [(Param, ParamValue)],
    config: Config,
    section: ConfigSection,
}

/// Why no configuration could be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadConfig {
    /// A line for the log, with file and line.
    pub line: Vec<u8>,
    /// The global parameters before the error, which name the log.
    pub globals: Values,
}

/// Fails for changes of permissions that are invalid whatever the values of the variables are.
pub fn check_value(param: Param, text: &[u8]) -> Result<(), Vec<u8>> {
    let is_chmod = matches!(param, Param::IncomingChmod | Param::OutgoingChmod);
    let has_variables = expand(text, &|_| Some(Vec::new())) != text;
    if is_chmod && !text.is_empty() && !has_variables && chmod::parse(text, 0).is_none() {
        let name = param.name().as_bytes();
        return Err([
            b"sparsync: invalid value of \"",
            name,
            b"\", expected modes as for --chmod: ",
            text,
        ]
        .concat());
    }
    Ok(())
}

impl<'a> ConfigReader<'a> {
    /// Reads a file. `overrides`: see `--dparam`.
    pub fn read(
        path: &[u8],
        files: &'a dyn ConfigFiles,
        vars: VarLookup<'a>,
        overrides: &'a [(Param, ParamValue)],
    ) -> Result<Config, BadConfig> {
        let mut reader = ConfigReader {
            files,
            vars,
            overrides,
            config: Config::default(),
            section: ConfigSection::Global,
        };
        for (param, value) in overrides {
            reader.config.globals.set(*param, value.clone());
        }
        if let Err(line) = reader.file(path, 0) {
            return Err(BadConfig {
                line,
                globals: reader.config.globals,
            });
        }
        let Config {
            globals, modules, ..
        } = &mut reader.config;
        for module in modules {
            module.values.inherit_texts(globals);
        }
        Ok(reader.config)
    }

    fn file(&mut self, path: &[u8], depth: usize) -> Result<(), Vec<u8>> {
        let text = self.files.read(path).map_err(|error| {
            [
                b"rsync: unable to open config file \"",
                path,
                b"\": ",
                &errno_words(&error)[..],
            ]
            .concat()
        })?;
        for (number, line) in logical_lines(&text) {
            let at = format!(" (line {number} of {})", path.escape_ascii()).into_bytes();
            self.line(&line, depth)
                .map_err(|why| [why, at.clone()].concat())?;
            for complaint in self
                .config
                .complaints
                .iter_mut()
                .filter(|complaint| complaint.ends_with(b"\0"))
            {
                complaint.pop();
                complaint.extend_from_slice(&at);
            }
        }
        Ok(())
    }

    /// Notes a line for the log. The NUL at its end is replaced by the place.
    fn complain(&mut self, parts: &[&[u8]]) {
        self.config
            .complaints
            .push([&parts.concat()[..], b"\0"].concat());
    }

    fn line(&mut self, line: &[u8], depth: usize) -> Result<(), Vec<u8>> {
        match line.first() {
            None | Some(b'#' | b';') => Ok(()),
            Some(b'[') => {
                let end = line.iter().position(|&byte| byte == b']');
                let end = end.ok_or_else(|| {
                    [
                        b"params.c:Section() - Badly formed line in config file: ",
                        &line[1..],
                    ]
                    .concat()
                })?;
                self.begin(&line[1..end])
            }
            Some(b'&') => self.directive(&line[1..], depth),
            Some(_) => self.parameter(line),
        }
    }

    fn begin(&mut self, name: &[u8]) -> Result<(), Vec<u8>> {
        let words: Vec<_> = name
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty())
            .collect();
        let name = words.join(&b' ');
        if name.is_empty() {
            return Err(b"params.c:Section() - Empty section name in config file.".to_vec());
        }
        if name.eq_ignore_ascii_case(b"global") {
            self.section = ConfigSection::Global;
            return Ok(());
        }
        if name.contains(&b'/') {
            return Err([
                b"Warning: invalid section name in configuration file: ",
                &name[..],
            ]
            .concat());
        }
        let modules = &mut self.config.modules;
        let known = modules
            .iter()
            .position(|module| module.name.eq_ignore_ascii_case(&name));
        if known.is_none() && modules.len() >= MODULES_MAX {
            return Err(format!("more than {MODULES_MAX} modules").into_bytes());
        }
        let index = known.unwrap_or_else(|| {
            modules.push(Module {
                name,
                values: self.config.globals.clone(),
            });
            modules.len() - 1
        });
        self.section = ConfigSection::Module(index);
        Ok(())
    }

    fn parameter(&mut self, line: &[u8]) -> Result<(), Vec<u8>> {
        let Some(sign) = line.iter().position(|&byte| byte == b'=') else {
            self.complain(&[
                b"params.c:Parameter() - Ignoring badly formed line in config file: ",
                line,
            ]);
            return Ok(());
        };
        let name = line[..sign].trim_ascii();
        let text = line[sign + 1..].trim_ascii();
        if name.is_empty() {
            return Err(b"params.c:Parameter() - Invalid parameter name in config file.".to_vec());
        }
        let Some(param) = Param::named(name) else {
            self.complain(&[b"Unknown Parameter encountered: \"", name, b"\""]);
            self.complain(&[b"IGNORING unknown parameter \"", name, b"\""]);
            return Ok(());
        };
        if param.is_global() && self.section != ConfigSection::Global {
            self.complain(&[
                b"Global parameter ",
                param.name().as_bytes(),
                b" found in module section!",
            ]);
            return Ok(());
        }
        check_value(param, text)?;
        // Texts are expanded when they are used.
        let value = param
            .parse(text)
            .or_else(|_| param.parse(&expand(text, self.vars)));
        match value {
            Ok(value) => match self.section {
                ConfigSection::Global
                    if self.overrides.iter().any(|(other, _)| *other == param) => {}
                ConfigSection::Global => self.config.globals.set(param, value),
                ConfigSection::Module(index) => self.config.modules[index].values.set(param, value),
            },
            Err(why) => self.complain(&[&why]),
        }
        Ok(())
    }

    fn directive(&mut self, line: &[u8], depth: usize) -> Result<(), Vec<u8>> {
        let len = line
            .iter()
            .position(|byte| byte.is_ascii_whitespace() || *byte == b'=')
            .unwrap_or(line.len());
        let name = &line[..len];
        let rest = line[len..].trim_ascii_start();
        let path = rest.strip_prefix(b"=").unwrap_or(rest).trim_ascii();
        let is_include = name.eq_ignore_ascii_case(b"include");
        if !is_include && !name.eq_ignore_ascii_case(b"merge") {
            return Err([b"Unknown directive: &", name, b"."].concat());
        }
        if depth >= INCLUDE_DEPTH_MAX {
            return Err(b"too many levels of included config files".to_vec());
        }
        let path = expand(path, self.vars);
        let names = self.files.names(&path).map_err(|error| {
            [
                &b"rsync: unable to stat config file \""[..],
                &path,
                b"\": ",
                &errno_words(&error),
            ]
            .concat()
        })?;
        let end: &[u8] = if is_include { b".conf" } else { b".inc" };
        let paths = match names {
            None => vec![path],
            Some(mut names) => {
                names.retain(|name| name.ends_with(end) && !name.starts_with(b"."));
                names.sort();
                names
                    .iter()
                    .map(|name| crate::path::join(&path, name))
                    .collect()
            }
        };
        for path in paths {
            if !is_include {
                self.file(&path, depth + 1)?;
                continue;
            }
            let globals = self.config.globals.clone();
            self.section = ConfigSection::Global;
            self.file(&path, depth + 1)?;
            self.section = ConfigSection::Global;
            self.config.globals = globals;
        }
        Ok(())
    }
}

/// Returns the lines of a file without blanks around them, each with the number of its first line. A line that ends with
/// a backslash continues on the next one; a comment does not.
fn logical_lines(text: &[u8]) -> Vec<(usize, Vec<u8>)> {
    let mut lines: Vec<(usize, Vec<u8>)> = Vec::new();
    let mut continues = false;
    for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let is_comment = !continues && matches!(line.trim_ascii_start().first(), Some(b'#' | b';'));
        let part = if is_comment {
            None
        } else {
            line.trim_ascii_end().strip_suffix(b"\\")
        };
        match lines.last_mut() {
            Some((_, last)) if continues => last.extend_from_slice(part.unwrap_or(line)),
            Some(_) | None => lines.push((index + 1, part.unwrap_or(line).to_vec())),
        }
        continues = part.is_some();
    }
    for (_, line) in &mut lines {
        *line = line.trim_ascii().to_vec();
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct Texts<'a>(&'a [(&'a str, &'a str)]);

    impl ConfigFiles for Texts<'_> {
        fn read(&self, path: &[u8]) -> io::Result<Vec<u8>> {
            let found = self.0.iter().find(|(name, _)| name.as_bytes() == path);
            found
                .map(|(_, text)| text.as_bytes().to_vec())
                .ok_or_else(|| io::ErrorKind::NotFound.into())
        }

        fn names(&self, path: &[u8]) -> io::Result<Option<Vec<Vec<u8>>>> {
            let below = |(name, _): &(&str, &str)| {
                name.strip_prefix(str::from_utf8(path).ok()?)?
                    .strip_prefix('/')
                    .map(str::to_owned)
            };
            let names: Vec<_> = self
                .0
                .iter()
                .filter_map(below)
                .map(String::into_bytes)
                .collect();
            Ok(Some(names).filter(|names| !names.is_empty()))
        }
    }

    fn read(files: &[(&str, &str)]) -> Result<Config, String> {
        let vars = |name: &[u8]| (name == b"YES").then(|| b"yes".to_vec());
        ConfigReader::read(b"c", &Texts(files), &vars, &[])
            .map_err(|error| String::from_utf8(error.line).unwrap())
    }

    fn text(config: &Config, module: &str, param: Param) -> String {
        let values = &config.module(module.as_bytes()).unwrap().values;
        String::from_utf8(values.raw(param).unwrap_or_default()).unwrap()
    }

    #[test]
    fn sections_inherit_the_globals_in_force() {
        let config = read(&[(
            "c",
            " # c\n;c\ncomment = all\n[ A  b ]x\n PATH= /a b \n[c]\ncomment=of c \\\n  more\n[global]\n list = no\ncomment=\n\
             [d]\npath=/d\n[a B]\nread only=%YES%\nlist=nO\n",
        )])
        .unwrap();
        assert_eq!(config.complaints, Vec::<Vec<u8>>::new());
        assert_eq!(
            config
                .modules
                .iter()
                .map(|module| &module.name[..])
                .collect::<Vec<_>>(),
            [&b"A b"[..], b"c", b"d"]
        );
        assert_eq!(text(&config, "A b", Param::Path), "/a b");
        assert_eq!(text(&config, "A b", Param::Comment), "all");
        assert_eq!(text(&config, "c", Param::Comment), "of c   more");
        assert_eq!(text(&config, "d", Param::Comment), "");
        let lists = |name: &[u8]| config.module(name).unwrap().values.flag(Param::List);
        assert_eq!(
            [lists(b"A b"), lists(b"c"), lists(b"d")],
            [false, true, false]
        );
        assert!(config.module(b"a B").is_none());
    }

    #[test]
    fn later_globals_set_the_texts_that_a_module_lacks() {
        let config = read(&[
            ("c", "[a]\nexclude=\n[b]\n[global]\nexclude=x\nlog format=x\nread only=no\n&include d\nfilter=y\n[c]\n"),
            ("d", "[d]\n[global]\nexclude=d\ncomment=d\n"),
        ])
        .unwrap();
        let texts = |name| {
            [Param::Exclude, Param::Filter, Param::Comment].map(|param| text(&config, name, param))
        };
        assert_eq!([texts("a"), texts("b")], [["", "y", ""], ["x", "y", ""]]);
        assert_eq!([texts("c"), texts("d")], [["x", "y", ""], ["x", "y", ""]]);
        assert!(text(&config, "b", Param::LogFormat).starts_with("%o"));
        assert!(config.module(b"b").unwrap().values.flag(Param::ReadOnly));
    }

    #[test]
    fn includes_have_a_scope_and_merges_have_none() {
        let config = read(&[
            ("c", "&merge = g.d\n&include=/m\n[last]\n"),
            ("g.d/b.inc", "comment = merged\n"),
            ("g.d/a.conf", "comment = other\n"),
            ("/m/b.conf", "[b]\n"),
            ("/m/a.conf", "comment = of a\n[a]\n"),
        ])
        .unwrap();
        let comments = ["a", "b", "last"].map(|name| text(&config, name, Param::Comment));
        assert_eq!(comments, ["of a", "merged", "merged"]);
        assert_eq!(config.modules[0].name, b"a");
    }

    #[test]
    fn complaints_name_file_and_line() {
        let config = read(&[("c", "x\nbogus=1\n[m]\nport=3\nlist=of\n")]).unwrap();
        let lines: Vec<_> = config
            .complaints
            .iter()
            .map(|line| String::from_utf8_lossy(line))
            .collect();
        assert_eq!(
            lines,
            [
                "params.c:Parameter() - Ignoring badly formed line in config file: x (line 1 of c)",
                "Unknown Parameter encountered: \"bogus\" (line 2 of c)",
                "IGNORING unknown parameter \"bogus\" (line 2 of c)",
                "Global parameter port found in module section! (line 4 of c)",
                "Badly formed boolean in configuration file: \"of\". (line 5 of c)",
            ]
        );
        for (wrong, why) in [
            (
                "[m",
                "params.c:Section() - Badly formed line in config file: m (line 1 of c)",
            ),
            (
                "\n[ ]",
                "params.c:Section() - Empty section name in config file. (line 2 of c)",
            ),
            (
                "=x",
                "params.c:Parameter() - Invalid parameter name in config file. (line 1 of c)",
            ),
            ("&foo x", "Unknown directive: &foo. (line 1 of c)"),
            (
                "[a/b]",
                "Warning: invalid section name in configuration file: a/b (line 1 of c)",
            ),
            (
                "[m]\nincoming chmod=D755,F",
                "sparsync: invalid value of \"incoming chmod\", expected modes as for --chmod: D755,F (line 2 of c)",
            ),
        ] {
            assert_eq!(read(&[("c", wrong)]), Err(why.to_owned()));
        }
        assert!(
            read(&[("c", "&merge c")])
                .unwrap_err()
                .starts_with("too many levels of included config files")
        );
        assert!(
            read(&[("c", "&merge d")])
                .unwrap_err()
                .starts_with("rsync: unable to open config file \"d\": ")
        );
    }

    #[test]
    fn command_line_overrides_globals_but_not_modules() {
        let overrides = [(Param::LogFile, ParamValue::Text(b"/l".to_vec()))];
        let files = [("c", "log file=/x\n[m]\n[n]\nlog file=/y\n")];
        let config = ConfigReader::read(b"c", &Texts(&files), &|_| None, &overrides).unwrap();
        assert_eq!(
            ["m", "n"].map(|name| text(&config, name, Param::LogFile)),
            ["/l", "/y"]
        );
    }

    proptest! {
        #[test]
        fn arbitrary_files_are_parsed_or_rejected(text in "[\\[\\]&=#;\\\\a-z \n%]{0,80}") {
            let _ = read(&[("c", &text)]);
        }
    }
}
