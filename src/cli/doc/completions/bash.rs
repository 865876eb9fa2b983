//! Completions for bash.

use super::command::{ArgumentKind, Command};
use crate::cli::flag::Arity;

/// What is the same for all commands. `@` marks where the tables are inserted.
const SCRIPT: &str = r#"# Completions of sparsync for bash, printed by `sparsync --completions=bash`.

# Prints the hosts that are known.
_sparsync_hosts() {
    sh -c '@HOSTS@'
}

# Prints the hosts that begin with a word, which may have a user before them.
_sparsync_hosts_like() {
    local user=''
    [[ $1 == *@* ]] && user=${1%@*}@
    compgen -P "$user" -W "$(_sparsync_hosts)" -- "${1#"$user"}"
}

# Adds proposals without what bash has taken for the end of the word before: it splits words at `:` and `@`.
_sparsync_reply() {
    local typed=${1%"$2"} name
    [[ $2 == [:@=] ]] && typed=$1
    compopt -o nospace 2>/dev/null
    while IFS= read -r name; do
        COMPREPLY+=("${name#"$typed"}")
    done
}

# Prints the names on a host that begin with a path, as words of the command line.
_sparsync_remote() {
    local path=${2//\\/} name end
    @LIST@ "$1" "@LIST_THERE@ $(printf %q "$path")*" </dev/null 2>/dev/null | while IFS= read -r name; do
        [[ $name == */ ]] && end='' || end=' '
        printf '%s:%q%s\n' "$1" "$name" "$end"
    done
}

_sparsync() {
    local command='' option='' last='(([^[:space:]\"'\'']|\\.)*)$' full='' cur=${COMP_WORDS[COMP_CWORD]} prev='' word options=''
    local -a source=()
    ((COMP_CWORD > 0)) && prev=${COMP_WORDS[COMP_CWORD - 1]}
    COMPREPLY=()

    # The word before the cursor, as it is typed.
    [[ ${COMP_LINE:0:COMP_POINT} =~ $last ]] && full=${BASH_REMATCH[1]}

    # Under another name, such as rsync, there are no commands.
    if ((COMP_CWORD > 1)) && [[ ${COMP_WORDS[0]##*/} == sparsync* ]]; then
        case ${COMP_WORDS[1]} in
            apply | bench | cache | check | doctor | enroll | explain | hash | plan | help) command=${COMP_WORDS[1]} ;;
            server)
                command=server
                for word in "${COMP_WORDS[@]:2:COMP_CWORD-2}"; do
                    case $word in
                        @ACTIONS@)
                            command="server $word"
                            break
                            ;;
                    esac
                done
                ;;
        esac
    fi

    # bash splits --option=value into three words, and host:path too.
    if [[ $cur == = ]]; then
        option=$prev cur=
    elif [[ $prev == = ]] && ((COMP_CWORD > 2)); then
        option=${COMP_WORDS[COMP_CWORD - 2]}
    elif [[ -z $command && $full == [!-]*:* && $full != *::* && ${full%%:*} != */* ]]; then
        _sparsync_reply "$full" "$cur" < <(_sparsync_remote "${full%%:*}" "${full#*:}")
        return
    elif [[ $cur == : || $prev == : ]]; then
        return
    else
        case "$command:$prev" in
            @DETACHED@) option=$prev ;;
        esac
    fi

    case "$command:$option" in
        *:) ;;
@ARGUMENTS@
        *) return ;;
    esac
    if ((${#source[@]} > 0)); then
        [[ ${source[0]} == -[df] ]] && compopt -o filenames -o default 2>/dev/null
        mapfile -t COMPREPLY < <(compgen "${source[@]}" -- "$cur")
        return
    fi

    case $command in
@OPTIONS@
    esac
    if [[ $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur")
        [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null
        return
    fi

    case $command in
        doctor | enroll | 'server '*) mapfile -t COMPREPLY < <(compgen -W "$(_sparsync_hosts)" -- "$cur") ;;
        server) mapfile -t COMPREPLY < <(compgen -W '@ACTION_LIST@' -- "$cur") ;;
        bench)
            compopt -o filenames -o default 2>/dev/null
            mapfile -t COMPREPLY < <(
                ((COMP_CWORD > 2)) || compgen -W 'scan sync' -- "$cur"
                ((COMP_CWORD < 3)) || compgen -d -- "$cur"
            )
            ;;
        apply)
            compopt -o filenames -o default 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -f -- "$cur")
            ;;
        cache)
            compopt -o filenames -o default 2>/dev/null
            mapfile -t COMPREPLY < <(
                ((COMP_CWORD > 2)) || compgen -W 'stat verify clear' -- "$cur"
                ((COMP_CWORD < 3)) || compgen -d -- "$cur"
            )
            ;;
        hash)
            compopt -o filenames -o default 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -d -- "$cur")
            ;;
        help) mapfile -t COMPREPLY < <(compgen -W 'apply bench cache check doctor enroll explain hash plan server' -- "$cur") ;;
        *)
            local -a hosts=()
            [[ -n $full && $full != */* ]] && mapfile -t hosts < <(_sparsync_hosts_like "$full")
            if ((${#hosts[@]} > 0)); then
                _sparsync_reply "$full" "$cur" < <(
                    printf '%s:\n' "${hosts[@]}"
                    compgen -f -- "$cur" | while IFS= read -r word; do
                        [[ -d $word ]] && option=/ || option=' '
                        printf '%q%s\n' "$word" "$option"
                    done
                )
                return
            fi
            compopt -o filenames -o default 2>/dev/null
            mapfile -t COMPREPLY < <(
                ((COMP_CWORD > 1)) || [[ ${COMP_WORDS[0]##*/} != sparsync* ]] ||
                    compgen -W 'apply bench cache check doctor enroll explain hash plan help server' -- "$cur"
                compgen -f -- "$cur"
            )
            ;;
    esac
}

complete -F _sparsync sparsync
# The same for rsync, if that is this program.
if [[ $(readlink -f "$(type -P rsync)") == */sparsync* || $(alias rsync 2>/dev/null) == *sparsync* ]]; then
    complete -F _sparsync rsync
fi
"#;

/// Returns the script.
pub fn script(commands: &[Command]) -> String {
    let actions: Vec<_> = commands.iter().filter_map(Command::action).collect();
    let mut detached = Vec::new();
    let mut arguments = String::new();
    let mut options = String::new();
    for command in commands {
        let mut names = Vec::new();
        for option in &command.options {
            let mut spelled: Vec<_> = option.long.iter().map(|name| format!("--{name}")).collect();
            names.extend(spelled.iter().map(|name| match option.arity {
                Arity::Value(_) => format!("{name}="),
                Arity::Switch | Arity::Optional(_) => name.clone(),
            }));
            let letter = option.short.map(|letter| format!("-{letter}"));
            names.extend(letter.clone());
            if option.arity == Arity::Switch {
                continue;
            }
            spelled.extend(letter);
            let patterns: Vec<_> = spelled
                .iter()
                .map(|name| format!("'{}:{name}'", command.name))
                .collect();
            if let Arity::Value(_) = option.arity {
                detached.extend_from_slice(&patterns);
            }
            let patterns = patterns.join(" | ");
            let source = match &option.argument {
                ArgumentKind::Any => continue,
                ArgumentKind::Words(words) => format!("-W '{}'", words.join(" ")),
                ArgumentKind::Host => "-W \"$(_sparsync_hosts)\"".to_owned(),
                ArgumentKind::File => "-f".to_owned(),
                ArgumentKind::Dir => "-d".to_owned(),
            };
            arguments += &format!("        {patterns}) source=({source}) ;;\n");
        }
        options += &format!(
            "        '{}') options='{}' ;;\n",
            command.name,
            names.join(" ")
        );
    }
    SCRIPT
        .replace("@ACTIONS@", &actions.join(" | "))
        .replace("@ACTION_LIST@", &actions.join(" "))
        .replace("@DETACHED@", &detached.join(" | "))
        .replace("@ARGUMENTS@\n", &arguments)
        .replace("@OPTIONS@\n", &options)
}
