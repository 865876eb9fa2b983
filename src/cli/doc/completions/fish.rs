//! Completions for fish.

use super::command::{ArgumentKind, Command, OptionEntry};
use crate::cli::flag::Arity;

/// What is the same for all commands. `@` marks where the tables are inserted.
const SCRIPT: &str = r#"# Completions of sparsync for fish, printed by `sparsync --completions=fish`.

# Prints the command before the cursor: copy, apply, bench, cache, check, doctor, enroll, explain, hash, plan, help, server, or server and an action.
function __sparsync_command
    set -l words (commandline -opc)
    # Under another name, such as rsync, there are no commands.
    if not string match -qr '(^|/)sparsync[^/]*$' -- $words[1]
        echo copy
        return
    end
    switch "$words[2]"
        case apply bench cache check doctor enroll explain hash plan help
            echo $words[2]
        case server
            for word in $words[3..-1]
                if contains -- $word @ACTIONS@
                    echo server $word
                    return
                end
            end
            echo server
        case '*'
            echo copy
    end
end

function __sparsync_is
    test (__sparsync_command) = "$argv"
end

function __sparsync_is_first
    set -l words (commandline -opc)
    test (count $words) = 1; and string match -qr '(^|/)sparsync[^/]*$' -- $words[1]
end

# Prints the hosts that are known.
function __sparsync_hosts
    set -l user (commandline -ct | string match -r '^.*@')
    sh -c '@HOSTS@' | string replace -r '^' "$user"
end

# Whether the word before the cursor begins with a host and a colon.
function __sparsync_is_remote
    set -l word (commandline -ct)
    string match -qr '^[^-/:][^/:]*:(?!:)' -- $word
end

# Prints the names on that host that begin like the word.
function __sparsync_remote
    set -l parts (string split -m 1 : -- (commandline -ct | string unescape))
    set -l path (string replace -ra '([^A-Za-z0-9_./-])' '\\\\$1' -- $parts[2])
    @LIST@ $parts[1] "@LIST_THERE@ $path*" </dev/null 2>/dev/null | string replace -r '^' "$parts[1]:"
end

complete -c sparsync -n 'not __sparsync_is copy' -f
complete -c sparsync -n '__sparsync_is copy; and __sparsync_is_remote' -f -a '(__sparsync_remote)'
complete -c sparsync -n '__sparsync_is copy; and not __sparsync_is_remote' -a '(__sparsync_hosts):'
complete -c sparsync -n '__sparsync_is bench' -a 'scan sync (__fish_complete_directories)'
complete -c sparsync -n '__sparsync_is apply' -F
complete -c sparsync -n '__sparsync_is cache' -a 'stat verify clear (__fish_complete_directories)'
complete -c sparsync -n '__sparsync_is check' -F -a '(__sparsync_hosts):'
complete -c sparsync -n '__sparsync_is doctor' -a '(__sparsync_hosts)'
complete -c sparsync -n '__sparsync_is enroll' -a '(__sparsync_hosts)'
complete -c sparsync -n '__sparsync_is hash' -a '(__fish_complete_directories)'
complete -c sparsync -n '__sparsync_is plan' -F -a '(__sparsync_hosts):'
complete -c sparsync -n '__sparsync_is explain' -F -a '(__sparsync_hosts):'
complete -c sparsync -n '__sparsync_is help' -a 'apply bench cache check doctor enroll explain hash plan server'
complete -c sparsync -n 'string match -q "server *" (__sparsync_command)' -a '(__sparsync_hosts)'
# The same for rsync, if that is this program.
if string match -q '*/sparsync*' -- (realpath -- (command -v rsync) 2>/dev/null)
    complete -c rsync -w sparsync
end
"#;

/// Returns the script.
pub fn script(commands: &[Command]) -> String {
    let actions: Vec<_> = commands.iter().filter_map(Command::action).collect();
    let mut out = SCRIPT.replace("@ACTIONS@", &actions.join(" "));
    for command in commands.iter().filter(|command| !command.name.is_empty()) {
        let (at, name) = match command.action() {
            Some(action) => ("__sparsync_is server", action),
            None => ("__sparsync_is_first", command.name.as_str()),
        };
        out += &format!(
            "complete -c sparsync -n '{at}' -a {name} -d {}\n",
            quoted(&command.help)
        );
    }
    for command in commands {
        let name = if command.name.is_empty() {
            "copy"
        } else {
            &command.name
        };
        for option in &command.options {
            out += &line(name, option);
        }
    }
    out
}

fn line(command: &str, option: &OptionEntry) -> String {
    let names = option
        .short
        .map(|letter| format!(" -s {letter}"))
        .into_iter();
    let names: String = names
        .chain(option.long.iter().map(|name| format!(" -l {name}")))
        .collect();
    let argument = match &option.argument {
        ArgumentKind::Any => String::new(),
        ArgumentKind::File => " -F".to_owned(),
        ArgumentKind::Dir => " -f -a '(__fish_complete_directories)'".to_owned(),
        ArgumentKind::Host => " -f -a '(__sparsync_hosts)'".to_owned(),
        ArgumentKind::Words(words) => format!(" -f -a '{}'", words.join(" ")),
    };
    let required = match (option.arity, &option.argument) {
        (Arity::Value(_), ArgumentKind::Any) => " -x",
        (Arity::Value(_), _) => " -r",
        (Arity::Switch | Arity::Optional(_), _) => "",
    };
    format!(
        "complete -c sparsync -n '__sparsync_is {command}'{names}{required}{argument} -d {}\n",
        quoted(&option.help)
    )
}

/// Returns text in single quotes.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}
