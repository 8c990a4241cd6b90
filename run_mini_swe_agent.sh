#!/usr/bin/env bash
# Trains a coding agent with Relax: starts the agent server on this machine, then a Relax job whose agent command is
# agent_client.sh. When either ends, or at Ctrl-C, the other is stopped too; the exit code is the training's.
#
#   run_mini_swe_agent.sh [--dry-run] [more options for Relax's training...]
#
#   --dry-run             print the two commands and start nothing
#   --help                print this
#
# Needed:
#   MINI_SWE_AGENT_VENV   virtual environment that the agent server runs in, on node-local storage
#   MODEL_DIR, SAVE_DIR   folder of the models, folder for checkpoints
#   R2E_DATA_PATH         folder of the parquet data
#   R2E_SIF_DIR           folder of the SIF images
#
# Often set:
#   RELAX_DIR             the Relax checkout (default: two levels above this folder)
#   RELAX_ENTRYPOINT_MODE set if a script of Relax's has started Ray already: scripts/entrypoint/local.sh is not sourced
#   RELAX_GENERATION      which options Relax knows: A (no parsers), B (prepare pool) or C (the default)
#   EXP_ROOT              folder for logs, dumps and sessions (default: SAVE_DIR/mini_swe_agent)
#   MODEL_NAME            the model below MODEL_DIR; MODEL_ARGS_FILE sets its MODEL_ARGS
#   ENABLE_EVAL           1 to evaluate during training
#   AGENT_SERVER_URL      an agent server that runs elsewhere; then none is started, and neither
#                         MINI_SWE_AGENT_VENV nor R2E_* is needed here
#   AGENT_SERVER_TOKEN    the server's bearer token, or AGENT_SERVER_TOKEN_FILE a file that holds it
#   AGENT_SERVER_*        the server's own settings (agent_server.py --help)
# and every training option by the variable of its name: see setup/training_options.sh.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=setup/require.sh
source "$here/setup/require.sh"
# shellcheck source=setup/launch_settings.sh
source "$here/setup/launch_settings.sh"
# shellcheck source=setup/agent_server.sh
source "$here/setup/agent_server.sh"
# shellcheck source=setup/training_options.sh
source "$here/setup/training_options.sh"

training=''

say() { printf '%s: %s\n' "${0##*/}" "$1" >&2; }

die() {
    say "$1"
    exit 1
}

# is_running PID: a child of this shell that has not ended. Unlike kill -0 it cannot meet a later process of that id.
is_running() { [[ $'\n'$(jobs -pr)$'\n' == *$'\n'"$1"$'\n'* ]]; }

build_training_command() {
    local program
    read -ra program <<<"$RELAX_TRAIN_COMMAND"
    ray_address=${RAY_ADDRESS:-http://127.0.0.1:8265}
    training_command=(ray job submit --address "$ray_address" --submission-id "$job"
        ${RUNTIME_ENV_JSON:+--runtime-env-json "$RUNTIME_ENV_JSON"} -- "${program[@]}" "${options[@]}" "${more_options[@]}")
}

# print_command WORD...: as it could be typed, an option a line
print_command() {
    local word between=''
    for word in "$@"; do
        [[ $word != --?* ]] || between=$' \\\n    '
        [[ $word =~ ^[A-Za-z0-9_./:=@%+-]+$ ]] || word=${word@Q}
        printf '%s%s' "$between" "$word"
        between=' '
    done
    printf '\n'
}

# Relax asks for prompts; the server has the tasks.
write_dummy_prompts() {
    local new row
    new=$(mktemp "$dummy_prompts.XXXXXX")
    for ((row = 0; row < 50; row++)); do
        echo '{"input":[{"role":"user","content":""}]}'
    done >"$new"
    chmod 644 "$new"
    mv -f "$new" "$dummy_prompts"
}

# end PID: stop a child of this shell, with force if it does not stop in time
end() {
    is_running "$1" || return 0
    kill -TERM "$1"
    timeout 60 tail --pid="$1" -f /dev/null || kill -KILL "$1"
}

finish() {
    local code=$?
    trap - EXIT
    trap '' INT TERM HUP
    if [[ $code != 0 && $training ]]; then
        # Whatever ended `ray job submit` need not have ended the job.
        say "making sure that training job $job is stopped"
        timeout 60 ray job stop --address "$ray_address" "$job" >/dev/null 2>&1 </dev/null ||
            say "ray did not confirm that it is stopped; see: ray job status --address $ray_address $job"
        end "$training"
    fi
    if [[ $server ]] && is_running "$server"; then
        say "stopping the agent server"
        end "$server"
    fi
    [[ -z $token_file ]] || rm -f "$token_file"
    exit "$code"
}

print_help() { sed -n '2,/^set /s/^# \{0,1\}//p' "$here/${BASH_SOURCE[0]##*/}"; }

launched_in=$PWD dry_run='' more_options=()
for word in "$@"; do
    case $word in
        -h | --help) print_help && exit ;;
        --dry-run) dry_run=yes ;;
        *) more_options+=("$word") ;;
    esac
done
# Else the scripts of Relax that are sourced below would take them for theirs.
set --

elsewhere=${AGENT_SERVER_URL:-}
if [[ $elsewhere ]]; then
    require "MODEL_DIR SAVE_DIR" "curl jq ray"
else
    require "MINI_SWE_AGENT_VENV MODEL_DIR SAVE_DIR R2E_DATA_PATH R2E_SIF_DIR" "apptainer curl jq ray"
fi
settle_settings
check_settings
take_token
collect_options
refuse_repeated "${more_options[@]}"
[[ $elsewhere ]] || explain_slots

if [[ $dry_run ]]; then
    if [[ -z $elsewhere ]]; then
        build_server_command
        printf '# the agent server\n'
        print_command "${server_command[@]}"
    fi
    : "${RUNTIME_ENV_JSON:=(set by scripts/entrypoint/local.sh)}"
    build_training_command
    printf '# training\n'
    print_command "${training_command[@]}"
    exit
fi

[[ -z $elsewhere ]] || check_other_machine
cd "$RELAX_DIR"
if [[ -z ${RELAX_ENTRYPOINT_MODE:-} ]]; then
    # Before the agent server: it kills every Python process of this machine. It is written for a shell that forgives.
    set +euo pipefail
    # shellcheck source=/dev/null
    source "$RELAX_DIR/scripts/entrypoint/local.sh"
    set -euo pipefail +x
fi

trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir -p "$EXP_ROOT"
write_token_file
write_dummy_prompts
if [[ $elsewhere ]]; then
    # It may have been one of the processes killed above.
    check_other_machine
else
    check_port_is_free
    start_server
    wait_until_ready
fi
say "the agent server is ready at $url; submitting the training job $job"

build_training_command
"${training_command[@]}" </dev/null &
training=$!
while is_running "$training"; do
    [[ -z $server ]] || is_running "$server" || server_failed "has ended during training"
    # In the background: a signal ends the wait at once, but not a foreground command.
    sleep 1 &
    wait "$!"
done
wait "$training"
