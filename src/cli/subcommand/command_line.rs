//! Formats the command line of an action of `server`.

use super::command::{Install, Rights, ServerAction, Session, Start};

impl ServerAction {
    /// Returns the command line that requests this action, from `server` on. Parsing it yields the same action.
    pub fn words(&self) -> Vec<Vec<u8>> {
        let mut line = CommandLine::default();
        match self {
            ServerAction::Start(start) => line.action("start").start(start),
            ServerAction::Stop { now } => line.action("stop").flag("now", *now),
            ServerAction::Restart { start, now } => {
                line.action("restart").start(start).flag("now", *now)
            }
            ServerAction::Status { json } => line.action("status").flag("json", *json),
            ServerAction::Metrics => line.action("metrics"),
            ServerAction::Install(Install {
                system,
                dry_run,
                start,
            }) => {
                let [system, user] = [true, false].map(|is_system| *system == Some(is_system));
                line.action("install")
                    .start(start)
                    .flag("system", system)
                    .flag("user", user)
                    .flag("dry-run", *dry_run)
            }
            ServerAction::Grants { json } => line.action("grants").flag("json", *json),
            ServerAction::Pin => line.action("pin"),
            ServerAction::Grant(new) => {
                line.action("grant")
                    .operand(&new.pin)
                    .flag("json", new.json)
                    .values("name", &new.name);
                let Rights {
                    roots,
                    read_only,
                    expires,
                    no_expiry,
                    allow_setuid,
                    no_munge,
                    owner,
                    no_owner,
                } = &new.rights;
                line.flag("allow-setuid", *allow_setuid == Some(true))
                    .flag("strip-setuid", *allow_setuid == Some(false));
                line.flag("no-munge", *no_munge == Some(true))
                    .flag("munge", *no_munge == Some(false));
                line.values("owner", owner).flag("no-owner", *no_owner);
                line.values("default-name", &new.default_name)
                    .values("root", roots);
                line.flag("read-only", *read_only == Some(true))
                    .flag("read-write", *read_only == Some(false));
                line.values("expires", expires)
                    .flag("no-expiry", *no_expiry)
                    .flag("start", new.start.is_some());
                new.start
                    .iter()
                    .fold(&mut line, |line, start| line.start(start))
            }
            ServerAction::Revoke { who, stop_unused } => line
                .action("revoke")
                .operand(who)
                .flag("stop-unused", *stop_unused),
            ServerAction::Session(Session {
                roots,
                read_only,
                allow_setuid,
                no_munge,
                owner,
                ceiling,
                memory,
                too_large,
            }) => {
                line.action("session")
                    .values("root", roots)
                    .flag("read-only", *read_only);
                line.flag("allow-setuid", *allow_setuid)
                    .flag("no-munge", *no_munge)
                    .values("owner", owner);
                line.values("ceiling", &ceiling.map(|number| number.to_string()));
                line.values("memory", &memory.map(|bytes| bytes.to_string()))
                    .flag("too-large", *too_large)
            }
            ServerAction::Pipe { address, pin } => {
                line.action("pipe").operand(address).operand(pin)
            }
        };
        line.words()
    }
}

/// Builds a command line.
#[derive(Default)]
struct CommandLine {
    action: &'static str,
    operands: Vec<Vec<u8>>,
    options: Vec<Vec<u8>>,
}

impl CommandLine {
    fn action(&mut self, action: &'static str) -> &mut CommandLine {
        self.action = action;
        self
    }

    fn operand(&mut self, operand: &str) -> &mut CommandLine {
        self.operands.push(operand.into());
        self
    }

    fn flag(&mut self, name: &str, is_on: bool) -> &mut CommandLine {
        self.options
            .extend(is_on.then(|| format!("--{name}").into_bytes()));
        self
    }

    fn value(&mut self, name: &str, value: &[u8]) -> &mut CommandLine {
        self.options
            .push([b"--", name.as_bytes(), b"=", value].concat());
        self
    }

    fn values<'a, V: AsRef<[u8]> + 'a>(
        &mut self,
        name: &str,
        values: impl IntoIterator<Item = &'a V>,
    ) -> &mut CommandLine {
        values
            .into_iter()
            .fold(self, |line, value| line.value(name, value.as_ref()))
    }

    fn start(&mut self, start: &Start) -> &mut CommandLine {
        self.flag("foreground", start.foreground)
            .flag("detached", start.detached)
            .values("listen", &start.listen);
        self.values("port", &start.port.map(|port| port.to_string()))
            .flag("or-other-port", start.or_other_port);
        self.values("memory", &start.memory.map(|bytes| bytes.to_string()))
    }

    fn words(self) -> Vec<Vec<u8>> {
        let begin = vec![b"server".to_vec(), self.action.into()];
        if self
            .operands
            .iter()
            .any(|operand| operand.starts_with(b"-"))
        {
            return [begin, self.options, vec![b"--".to_vec()], self.operands].concat();
        }
        [begin, self.operands, self.options].concat()
    }
}
