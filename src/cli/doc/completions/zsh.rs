//! Completions for zsh.

use super::command::{ArgumentKind, Command, OptionEntry, quoted};
use crate::cli::flag::Arity;

/// What is the same for all commands. `@` marks where the tables are inserted.
const SCRIPT: &str = r#"#compdef sparsync
# Completions of sparsync for zsh, printed by `sparsync --completions=zsh`.

_sparsync_first() {
    if [[ $service != rsync && $PREFIX != *:* ]]; then
        _alternative 'commands:command:((@COMMANDS@))' 'operands:operand:_sparsync_operand'
    else
        _sparsync_operand
    fi
}

# The hosts that are known.
_sparsync_hosts() {
    local -a hosts=(${(f)"$(sh -c '@HOSTS@')"})
    compset -P '*@'
    compadd "$@" -a hosts
}

# A path on this machine, a host, or a path on a host.
_sparsync_operand() {
    if [[ $PREFIX != [^-]*:* || $PREFIX == *::* || ${PREFIX%%:*} == */* ]]; then
        _alternative 'files:file:_files' 'hosts:host:_sparsync_hosts -S :'
        return
    fi
    local host=${PREFIX%%:*}
    local there=${(Q)PREFIX#*:}
    local -a names=(${(f)"$(@LIST@ "$host" "@LIST_THERE@ ${(q)there}*" </dev/null 2>/dev/null)"})
    compset -P 1 '*:'
    local -a dirs=(${(M)names:#*/}) files=(${names:#*/})
    compadd -S '' -a dirs
    compadd -a files
}

_sparsync() {
    local command=
    if (( CURRENT > 2 )) && [[ $service != rsync ]]; then
        case $words[2] in
            apply | bench | check | doctor | enroll | explain | hash | plan | help) command=$words[2] ;;
            server) command="server ${words[(r)(@ACTIONS@)]}" ;;
        esac
    fi
    # While an action is being typed, there is none yet.
    [[ $command == "server $words[CURRENT]" ]] && command='server '
    [[ -n $command ]] && { shift words; (( CURRENT-- )) }
    case $command in
@TABLE@
        help) _arguments ':command:(apply bench check doctor enroll explain hash plan server)' ;;
    esac
}

if [[ $funcstack[1] == _sparsync ]]; then
    _sparsync "$@"
else
    compdef _sparsync sparsync
    # The same for rsync, if that is this program.
    if [[ ${commands[rsync]:A} == */sparsync* ]]; then
        compdef _sparsync rsync
    fi
fi
"#;

/// Returns the script.
pub fn script(commands: &[Command]) -> String {
    let actions: Vec<_> = commands
        .iter()
        .filter_map(|command| Some((command.action()?, command)))
        .collect();
    let described = |name: &str, help: &str| format!("{name}\\:{}", quoted_twice(help));
    let verbs = commands.iter().filter(|command| {
        [
            "apply", "bench", "cache", "check", "doctor", "enroll", "explain", "hash", "plan",
            "server",
        ]
        .contains(&command.name.as_str())
    });
    let verbs: Vec<_> = verbs
        .map(|command| described(&command.name, &command.help))
        .collect();
    let listed: Vec<_> = actions
        .iter()
        .map(|(action, command)| described(action, &command.help))
        .collect();
    let mut table = String::new();
    for command in commands {
        let name = if command.name == "server" {
            "server "
        } else {
            &command.name
        };
        let operands = match name {
            "" => "'1: :_sparsync_first' '*:operand:_sparsync_operand'".to_owned(),
            "server " => format!("'1:action:(({}))'", listed.join(" ")),
            "bench" => "'1:measurement:(scan sync)' '*:directory:_files -/'".to_owned(),
            "check" | "explain" | "plan" => "'*:operand:_sparsync_operand'".to_owned(),
            "apply" => "'1:plan:_files' '*:operand:_sparsync_operand'".to_owned(),
            "cache" => "'1:action:(stat verify clear)' '2:directory:_files -/'".to_owned(),
            "hash" => "'1:directory:_files -/'".to_owned(),
            "doctor" | "enroll" => "'1:host:_sparsync_hosts'".to_owned(),
            _ => "'1: :' '*:host:_sparsync_hosts'".to_owned(),
        };
        let specs = command
            .options
            .iter()
            .flat_map(specs)
            .map(|spec| format!(" \\\n                {spec}"));
        let specs: String = specs.collect();
        table += &format!(
            "        '{name}')\n            _arguments -s -S{specs} \\\n                {operands}\n            ;;\n"
        );
    }
    let names: Vec<_> = actions.iter().map(|(action, _)| *action).collect();
    SCRIPT
        .replace("@COMMANDS@", &verbs.join(" "))
        .replace("@ACTIONS@", &names.join("|"))
        .replace("@TABLE@\n", &table)
}

/// Returns the descriptions of an option for `_arguments`, one for each name. All options may be repeated.
fn specs(option: &OptionEntry) -> Vec<String> {
    let help = escaped(&option.help, &['[', ']', ':']);
    let argument = |placeholder: &str| {
        let action = match &option.argument {
            ArgumentKind::Any => " ".to_owned(),
            ArgumentKind::File => "_files".to_owned(),
            ArgumentKind::Dir => "_files -/".to_owned(),
            ArgumentKind::Host => "_sparsync_hosts".to_owned(),
            ArgumentKind::Words(words) => format!("({})", words.join(" ")),
        };
        format!("{}:{action}", escaped(placeholder, &[':']))
    };
    let spec = |name: String, is_long: bool| match option.arity {
        Arity::Switch => quoted(&format!("*{name}[{help}]")),
        Arity::Optional(word) => quoted(&format!("*{name}=-[{help}]::{}", argument(word))),
        Arity::Value(word) => {
            let joint = if is_long { "=" } else { "+" };
            quoted(&format!("*{name}{joint}[{help}]:{}", argument(word)))
        }
    };
    let long = option
        .long
        .iter()
        .map(|name| spec(format!("--{name}"), true));
    long.chain(option.short.map(|letter| spec(format!("-{letter}"), false)))
        .collect()
}

/// Returns text with a backslash before backslashes and these characters.
fn escaped(text: &str, special: &[char]) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        if letter == '\\' || special.contains(&letter) {
            out.push('\\');
        }
        out.push(letter);
    }
    out
}

/// Returns text as a double-quoted word inside of a single-quoted one.
fn quoted_twice(text: &str) -> String {
    format!(
        "\"{}\"",
        escaped(text, &['"', '$', '`', ':', '(', ')']).replace('\'', "'\\''")
    )
}
