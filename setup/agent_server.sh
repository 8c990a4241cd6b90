# Sourced by run_mini_swe_agent.sh, whose variables it uses: the agent server is started, asked, stopped.
# shellcheck disable=SC2034,SC2154 # what these scripts share is told by run_mini_swe_agent.sh

server='' token_file=''

# The token is never an argument: every user of a machine sees those, and Ray keeps a job's command and environment
# for its dashboard. The agents are told a file, which must be readable on every node that runs them.
take_token() {
    token=${AGENT_SERVER_TOKEN:-}
    # Whatever Ray starts would inherit it.
    unset AGENT_SERVER_TOKEN
    if [[ ${AGENT_SERVER_TOKEN_FILE:-} ]]; then
        token=$(cat -- "$AGENT_SERVER_TOKEN_FILE") || die "AGENT_SERVER_TOKEN_FILE=$AGENT_SERVER_TOKEN_FILE cannot be read"
        [[ $token ]] || die "AGENT_SERVER_TOKEN_FILE=$AGENT_SERVER_TOKEN_FILE is empty"
    elif [[ $token ]]; then
        token_file=$EXP_ROOT/agent_server_token-$run_id
    fi
}

write_token_file() {
    [[ -z $token_file ]] || (umask 077 && printf '%s\n' "$token" >"$token_file")
}

# ask PATH: sets `http_code` and `answer`; without an answer they are 000 and curl's words. Curl's own code is returned.
ask() {
    local code=0 config quoted=${token//\\/\\\\}
    printf -v config 'url = "%s"\n' "$url$1"
    [[ -z $token ]] || printf -v config '%sheader = "Authorization: Bearer %s"\n' "$config" "${quoted//\"/\\\"}"
    answer=$(curl -q --silent --show-error --noproxy '*' --globoff --connect-timeout 5 --max-time 10 \
        --write-out '\n%{http_code}' --config - 2>&1 <<<"$config") || code=$?
    http_code=${answer##*$'\n'} answer=${answer%$'\n'*}
    return "$code"
}

# answered FILTER: what jq finds in the answer, nothing if there is no such thing.
answered() { jq -r "$1 // empty" <<<"$answer" 2>/dev/null || true; }

# A server that an earlier launch has left would answer in place of ours.
check_port_is_free() {
    local code=0 holder='a program that is no agent server'
    ask /healthz || code=$?
    # 7: nothing takes the connection.
    ((code != 7)) || return 0
    [[ -z $(answered .run_id) ]] || holder="the agent server of another launch (run $(answered .run_id))"
    die "$url is taken by $holder: stop it, or choose another AGENT_SERVER_PORT"
}

build_server_command() {
    # Numeric libraries would start a thread per core in every process.
    server_command=(env "OMP_NUM_THREADS=$SERVER_BLAS_THREADS" "MKL_NUM_THREADS=$SERVER_BLAS_THREADS"
        "OPENBLAS_NUM_THREADS=$SERVER_BLAS_THREADS"
        "$MINI_SWE_AGENT_VENV/bin/python" "$here/agent_server.py"
        --host "$AGENT_SERVER_HOST" --port "$AGENT_SERVER_PORT"
        --r2e-data-path "$R2E_DATA_PATH" --r2e-sif-dir "$R2E_SIF_DIR"
        --work-dir "$AGENT_SERVER_WORK_DIR" --run-id "$run_id"
        --train-concurrency "$AGENT_SERVER_TRAIN_CONCURRENCY" --eval-concurrency "$AGENT_SERVER_EVAL_CONCURRENCY"
        --train-group-size "$N_SAMPLES_PER_PROMPT" --eval-group-size "$eval_group_size")
}

start_server() {
    build_server_command
    mkdir -p "${log%/*}"
    ln -sfn "logs/${log##*/}" "$AGENT_SERVER_WORK_DIR/server.log"
    (
        # Paths in its settings are meant from where the launch was made.
        cd "$launched_in" || exit
        unset AGENT_SERVER_TOKEN_FILE
        [[ -z $token ]] || export AGENT_SERVER_TOKEN=$token
        # In a session of its own: Ctrl-C is for the launch script, which then stops the server in good order.
        exec setsid "${server_command[@]}"
    ) >"$log" 2>&1 </dev/null &
    server=$!
    say "starting the agent server at $url; its log is $log"
}

server_failed() {
    tail -n 15 "$log" | sed 's/^/    /' >&2
    die "the agent server $1; its log is $log"
}

wait_until_ready() {
    local deadline=$((SECONDS + SERVER_START_SECONDS)) other
    until ask /readyz && [[ $http_code == 200 ]]; do
        is_running "$server" || server_failed "did not start"
        ((SECONDS < deadline)) || server_failed "is not ready after $SERVER_START_SECONDS s"
        sleep 0.2
    done
    other=$(answered .run_id)
    [[ $other == "$run_id" ]] || server_failed "is not what answers at $url (run ${other:-unknown} does)"
    check_rows
}

check_other_machine() {
    ask /readyz || die "no agent server answers at AGENT_SERVER_URL=$url: $answer"
    case $http_code in
        200) [[ $(answered .run_id) ]] || die "what answers at AGENT_SERVER_URL=$url is not an agent server" ;;
        401 | 403) die "the agent server at $url refuses the token (HTTP $http_code): set AGENT_SERVER_TOKEN or AGENT_SERVER_TOKEN_FILE to the one that it was started with" ;;
        *) die "the agent server at $url is not ready (HTTP $http_code)" ;;
    esac
    check_rows
    group_size=$(answered .tasks.train.group_size)
    [[ ! $group_size || $group_size == "$N_SAMPLES_PER_PROMPT" ]] ||
        die "the agent server at $url gives a row to $group_size sessions, but N_SAMPLES_PER_PROMPT=$N_SAMPLES_PER_PROMPT: start it with AGENT_SERVER_TRAIN_GROUP_SIZE=$N_SAMPLES_PER_PROMPT"
}

check_rows() {
    [[ $(answered .tasks.train) ]] || die "the agent server at $url has no training rows"
    [[ $ENABLE_EVAL == 0 || $(answered .tasks.eval) ]] ||
        die "the agent server at $url has no evaluation rows, which ENABLE_EVAL=1 needs"
}
