//! The parameters of rsyncd.conf: names, kinds, defaults, and the values of a section.

use std::collections::BTreeMap;

/// What a parameter may be set to, with its default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamKind {
    /// A boolean.
    Flag(bool),
    /// A boolean that is decided elsewhere if it is not set.
    OptionalFlag,
    /// A number.
    Number(i32),
    /// A text; it can be empty, which is the same as not set.
    Text(&'static str),
}

/// The value of a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParamValue {
    /// A boolean.
    Flag(bool),
    /// A number.
    Number(i32),
    /// A text, before variables in it are expanded.
    Text(Vec<u8>),
}

macro_rules! params {
    ($($(#[doc = $doc:literal])* $id:ident $name:literal $global:literal $kind:expr;)*) => {
        /// A parameter.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Param { $(#[doc = $name] $id,)* }

        /// All parameters: the parameter, its name, whether it is global, its kind.
        pub const PARAMS: &[(Param, &str, bool, ParamKind)] = &[$((Param::$id, $name, $global, $kind),)*];
    };
}

use ParamKind::{Flag, Number, OptionalFlag, Text};

params! {
    MotdFile "motd file" true Text("");
    PidFile "pid file" true Text("");
    Port "port" true Number(0);
    Address "address" true Text("");
    SocketOptions "socket options" true Text("");
    ListenBacklog "listen backlog" true Number(128);
    DaemonChroot "daemon chroot" true Text("");
    DaemonUid "daemon uid" true Text("");
    DaemonGid "daemon gid" true Text("");
    ProxyProtocol "proxy protocol" true Flag(false);
    ProxyProtocolHosts "proxy protocol hosts" true Text("");
    Comment "comment" false Text("");
    Path "path" false Text("");
    UseChroot "use chroot" false OptionalFlag;
    NameConverter "name converter" false Text("");
    NumericIds "numeric ids" false OptionalFlag;
    MungeSymlinks "munge symlinks" false OptionalFlag;
    InsecureLinks "insecure links" false Flag(false);
    Charset "charset" false Text("");
    MaxConnections "max connections" false Number(0);
    LogFile "log file" false Text("");
    SyslogFacility "syslog facility" false Text("daemon");
    SyslogTag "syslog tag" false Text("rsyncd");
    MaxVerbosity "max verbosity" false Number(1);
    LockFile "lock file" false Text("/var/run/rsyncd.lock");
    ReadOnly "read only" false Flag(true);
    WriteOnly "write only" false Flag(false);
    OpenNoatime "open noatime" false OptionalFlag;
    List "list" false Flag(true);
    Uid "uid" false Text("");
    Gid "gid" false Text("");
    FakeSuper "fake super" false Flag(false);
    Filter "filter" false Text("");
    Exclude "exclude" false Text("");
    Include "include" false Text("");
    ExcludeFrom "exclude from" false Text("");
    IncludeFrom "include from" false Text("");
    IncomingChmod "incoming chmod" false Text("");
    OutgoingChmod "outgoing chmod" false Text("");
    AuthUsers "auth users" false Text("");
    SecretsFile "secrets file" false Text("");
    AuthDigest "auth digest" false Text("");
    StrictModes "strict modes" false Flag(true);
    HostsAllow "hosts allow" false Text("");
    HostsDeny "hosts deny" false Text("");
    ReverseLookup "reverse lookup" false Flag(true);
    ForwardLookup "forward lookup" false Flag(true);
    IgnoreErrors "ignore errors" false Flag(false);
    IgnoreNonreadable "ignore nonreadable" false Flag(false);
    TransferLogging "transfer logging" false Flag(false);
    LogFormat "log format" false Text("%o %h [%a] %m (%u) %f %l");
    Timeout "timeout" false Number(0);
    RefuseOptions "refuse options" false Text("");
    DontCompress "dont compress" false Text("");
    EarlyExec "early exec" false Text("");
    PreXferExec "pre-xfer exec" false Text("");
    PostXferExec "post-xfer exec" false Text("");
    TempDir "temp dir" false Text("");
}

impl Param {
    /// Finds a parameter. Case and blanks in the name do not matter.
    pub fn named(name: &[u8]) -> Option<Param> {
        let plain = |name: &[u8]| -> Vec<u8> {
            name.iter()
                .filter(|byte| !byte.is_ascii_whitespace())
                .map(u8::to_ascii_lowercase)
                .collect()
        };
        let wanted = plain(name);
        PARAMS
            .iter()
            .find(|(_, known, ..)| plain(known.as_bytes()) == wanted)
            .map(|(param, ..)| *param)
    }

    fn row(self) -> &'static (Param, &'static str, bool, ParamKind) {
        // The table has the order of the enum.
        &PARAMS[self as usize]
    }

    /// Returns the name.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Returns whether the parameter concerns the whole daemon and cannot be set for a module.
    pub fn is_global(self) -> bool {
        self.row().2
    }

    /// Parses a value. The error is what rsync logs; the parameter keeps its value then.
    pub fn parse(self, text: &[u8]) -> Result<ParamValue, Vec<u8>> {
        let word = text.to_ascii_lowercase();
        match self.row().3 {
            Flag(_) | OptionalFlag => match &word[..] {
                b"yes" | b"true" | b"1" => Ok(ParamValue::Flag(true)),
                b"no" | b"false" | b"0" => Ok(ParamValue::Flag(false)),
                _ => Err([
                    b"Badly formed boolean in configuration file: \"",
                    text,
                    b"\".",
                ]
                .concat()),
            },
            Number(_) => match number_at_start(text) {
                Some(number) => Ok(ParamValue::Number(number)),
                None => Err([
                    b"Badly formed number in configuration file: \"",
                    text,
                    b"\".",
                ]
                .concat()),
            },
            Text(_) => Ok(ParamValue::Text(text.to_vec())),
        }
    }
}

/// Returns the number that a text begins with, as C's `atoi`.
fn number_at_start(text: &[u8]) -> Option<i32> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let len = digits
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    if len == 0 {
        return None;
    }
    let end = text.len() - digits.len() + len;
    str::from_utf8(&text[..end]).ok()?.parse().ok()
}

/// The values of a section: those that it sets and those that it inherits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Values(BTreeMap<Param, ParamValue>);

impl Values {
    /// Sets a parameter.
    pub fn set(&mut self, param: Param, value: ParamValue) {
        self.0.insert(param, value);
    }

    /// Sets the texts without a default that are not set, even to an empty text, to those of `globals`. As in rsync, which
    /// looks for them when it uses them, they may follow the module in the file.
    pub fn inherit_texts(&mut self, globals: &Values) {
        for (param, value) in globals
            .0
            .iter()
            .filter(|(param, _)| param.row().3 == Text(""))
        {
            self.0.entry(*param).or_insert_with(|| value.clone());
        }
    }

    /// Returns a boolean.
    pub fn flag(&self, param: Param) -> bool {
        self.optional_flag(param)
            .unwrap_or(matches!(param.row().3, Flag(true)))
    }

    /// Returns a boolean that may not be set.
    pub fn optional_flag(&self, param: Param) -> Option<bool> {
        match self.0.get(&param) {
            Some(ParamValue::Flag(value)) => Some(*value),
            _ => None,
        }
    }

    /// Returns a number.
    pub fn number(&self, param: Param) -> i32 {
        match (self.0.get(&param), param.row().3) {
            (Some(ParamValue::Number(value)), _) => *value,
            (None, Number(value)) => value,
            _ => 0,
        }
    }

    /// Returns a text in which the variables are expanded; `None` if it is empty.
    pub fn text(&self, param: Param, vars: VarLookup<'_>) -> Option<Vec<u8>> {
        Some(expand(&self.raw(param)?, vars)).filter(|text| !text.is_empty())
    }

    /// Returns a text as it stands in the file; `None` if it is empty.
    pub fn raw(&self, param: Param) -> Option<Vec<u8>> {
        let text = match (self.0.get(&param), param.row().3) {
            (Some(ParamValue::Text(text)), _) => text.clone(),
            (None, Text(default)) => default.as_bytes().to_vec(),
            _ => Vec::new(),
        };
        Some(text).filter(|text| !text.is_empty())
    }
}

/// Looks up a variable of the environment.
pub type VarLookup<'a> = &'a dyn Fn(&[u8]) -> Option<Vec<u8>>;

/// Replaces each `%NAME%` by the value of a variable, if there is one. As in rsync, contrary to its manual, `%%` stays.
pub fn expand(text: &[u8], vars: VarLookup<'_>) -> Vec<u8> {
    // A text that a plain copy returns cannot fail.
    expand_with(text, &|name, out| {
        let value = vars(name)?;
        out.extend_from_slice(&value);
        Some(())
    })
}

/// Appends the value of a variable to a text; `None` if there is no such variable.
pub type PutVariable<'a> = &'a dyn Fn(&[u8], &mut Vec<u8>) -> Option<()>;

/// As [`expand()`], but `put` appends the value of a variable; `None` if it does not exist.
pub fn expand_with(text: &[u8], put: PutVariable<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.iter().position(|&byte| byte == b'%') {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at + 1..];
        let len = rest
            .iter()
            .take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_')
            .count();
        if len > 0 && rest.get(len) == Some(&b'%') && put(&rest[..len], &mut out).is_some() {
            rest = &rest[len + 1..];
        } else {
            out.push(b'%');
        }
    }
    out.extend_from_slice(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_the_order_of_the_enum() {
        for (at, (param, name, ..)) in PARAMS.iter().enumerate() {
            assert_eq!(*param as usize, at, "{name}");
            assert_eq!(Param::named(name.to_uppercase().as_bytes()), Some(*param));
        }
        assert_eq!(Param::named(b" motdFILE "), Some(Param::MotdFile));
        assert_eq!(Param::named(b"bogus"), None);
    }

    #[test]
    fn values_are_parsed_by_kind() {
        for (text, value) in [
            ("Yes", true),
            ("TRUE", true),
            ("1", true),
            ("no", false),
            ("False", false),
            ("0", false),
        ] {
            assert_eq!(
                Param::List.parse(text.as_bytes()),
                Ok(ParamValue::Flag(value)),
                "{text}"
            );
        }
        let error = b"Badly formed boolean in configuration file: \"of\".".to_vec();
        assert_eq!(Param::ReadOnly.parse(b"of"), Err(error));
        assert_eq!(Param::Port.parse(b"-12 x"), Ok(ParamValue::Number(-12)));
        assert!(Param::Port.parse(b"x").is_err());
        let mut values = Values::default();
        assert_eq!(
            (
                values.flag(Param::ReadOnly),
                values.number(Param::ListenBacklog)
            ),
            (true, 128)
        );
        assert_eq!(values.optional_flag(Param::UseChroot), None);
        values.set(Param::ReadOnly, ParamValue::Flag(false));
        assert!(!values.flag(Param::ReadOnly));
    }

    #[test]
    fn variables_are_expanded_once() {
        let vars = |name: &[u8]| match name {
            b"A" => Some(b"x%B%".to_vec()),
            b"B" => Some(b"y".to_vec()),
            _ => None,
        };
        let expanded = |text: &str| String::from_utf8(expand(text.as_bytes(), &vars)).unwrap();
        for (text, value) in [
            ("/home/%B%/d", "/home/y/d"),
            ("%A%", "x%B%"),
            ("100%", "100%"),
            ("%NO%%B%", "%NO%y"),
            ("%%B%%", "%y%"),
            ("%o %h", "%o %h"),
        ] {
            assert_eq!(expanded(text), value, "{text}");
        }
    }
}
