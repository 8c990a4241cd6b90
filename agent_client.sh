#!/usr/bin/env bash
# Runs one session on the agent server for the trainer that started this process: opens it, waits for
# its end, writes the trainer's output file; gives the session up when told to stop.
#
# Exit codes: the server's own when the session has ended (0 completed, 1 failed, 143 cancelled); 1 when
# the server cannot be used; 2 when the environment is incomplete; 143 after SIGTERM, SIGINT or SIGHUP.
#
# The trainer's session id is its API key as well: it goes to other programs by file, pipe or environment,
# never as an argument that every user of the machine can read. So does AGENT_SERVER_TOKEN, which may also be in
# the file AGENT_SERVER_TOKEN_FILE.
set -uo pipefail
export LC_ALL=C

readonly POLL_SECONDS=60
readonly MAX_FAILURES=20
readonly MAX_PAUSE_MS=5000
readonly MAX_RETRY_AFTER=30
readonly CURL=(curl -q --silent --show-error --noproxy '*' --globoff)

token=${AGENT_SERVER_TOKEN:-} scratch='' request_id='' session_id='' asked=''

say() { printf 'agent_client: %s\n' "$1" >&2; }

check_environment() {
    local name missing=() wrong=()
    for name in AGENT_SERVER_URL RELAX_SESSION_ID RELAX_GROUP_ID RELAX_ROLLOUT_MODE RELAX_BASE_URL RELAX_OUTPUT_JSON; do
        [[ -n ${!name:-} ]] || missing+=("$name")
    done
    ((${#missing[@]} == 0)) || wrong+=("not set: ${missing[*]}")
    missing=()
    for name in curl jq; do
        command -v "$name" >/dev/null || missing+=("$name")
    done
    ((${#missing[@]} == 0)) || wrong+=("not installed: ${missing[*]}")
    [[ ${AGENT_SERVER_URL:-http://} =~ ^https?:// ]] ||
        wrong+=("AGENT_SERVER_URL=$AGENT_SERVER_URL is not an http:// or https:// address")
    if [[ -z $token && -n ${AGENT_SERVER_TOKEN_FILE:-} ]]; then
        { token=$(<"$AGENT_SERVER_TOKEN_FILE"); } 2>/dev/null ||
            wrong+=("cannot read AGENT_SERVER_TOKEN_FILE=$AGENT_SERVER_TOKEN_FILE")
    fi
    [[ $token =~ ^[[:graph:]]*$ ]] || wrong+=("the token is not one word of visible ASCII characters")
    ((${#wrong[@]} == 0)) && return
    name=$(printf '; %s' "${wrong[@]}")
    say "${name:2}"
    exit 2
}

quoted() {
    local text=${1//\\/\\\\}
    printf '"%s"' "${text//\"/\\\"}"
}

# curl_config METHOD PATH: what must not be seen in curl's arguments.
curl_config() {
    printf 'request = "%s"\nurl = %s\n' "$1" "$(quoted "${AGENT_SERVER_URL%"${AGENT_SERVER_URL##*[!/]}"}$2")"
    [[ -z $token ]] || printf 'header = %s\n' "$(quoted "Authorization: Bearer $token")"
}

# call METHOD PATH MAX_SECONDS [BODY_FILE]: sets http_code (000: no usable answer), answer_id, status,
# exit_code, error_code and cause; leaves the whole answer in $scratch/answer.
# curl runs in the background: bash runs a trap at once when it waits, but not before a foreground command ends.
call() {
    local body=() answer config
    (($# < 4)) || body=(--header 'Content-Type: application/json' --data-binary "@$4")
    config=$(curl_config "$1" "$2")
    "${CURL[@]}" --connect-timeout 5 --max-time "$3" --output "$scratch/answer" --dump-header "$scratch/headers" \
        --write-out '%{http_code}' "${body[@]}" --config - <<<"$config" >"$scratch/code" 2>"$scratch/why" &
    if ! wait "$!"; then
        http_code=000 error_code='' cause=$(<"$scratch/why")
        cause=${cause//$'\n'/ }
        return
    fi
    http_code=$(<"$scratch/code")
    mapfile -t answer < <(jq -r '
        .session_id // "", .status // "", .exit_code // "", (.error | if type == "object" then .code else "" end) // "",
        ((.error | if type == "object" then .message else . end) // "" | tostring | gsub("\\s+"; " ") | .[:2000])
        ' "$scratch/answer" 2>/dev/null)
    answer_id=${answer[0]:-} status=${answer[1]:-} exit_code=${answer[2]:-} error_code=${answer[3]:-} cause=${answer[4]:-}
    if [[ $http_code == 2?? && (-z $answer_id || -z $status) ]]; then
        http_code=000 cause='what answers there is not an agent server'
    fi
}

# persist METHOD PATH MAX_SECONDS [BODY_FILE]: like call, again and again while the failure may pass. A server that
# is full is no failure: its turn comes, however long that takes.
persist() {
    local failures=0
    while call "$@"; [[ $http_code == 000 || $http_code == 429 || $http_code == 5?? ]]; do
        [[ $error_code != full ]] || failures=-1
        ((++failures < MAX_FAILURES)) || die "gave up on $AGENT_SERVER_URL after $failures failures in a row: $cause"
        pause_before_retry "$failures"
    done
}

pause_before_retry() {
    local seconds ms
    seconds=$(sed -En 's/^[Rr]etry-[Aa]fter:[[:space:]]*([0-9]{1,6})[[:space:]]*$/\1/p' "$scratch/headers" 2>/dev/null)
    if [[ $http_code != 000 && -n $seconds ]]; then
        ((10#$seconds <= MAX_RETRY_AFTER)) || seconds=$MAX_RETRY_AFTER
        ms=$((10#$seconds * 1000))
    else
        ms=$((250 << ($1 < 6 ? $1 : 6)))
        ((ms <= MAX_PAUSE_MS)) || ms=$MAX_PAUSE_MS
    fi
    # Many clients fail together; they should not come back together.
    ms=$((ms + RANDOM % 250))
    pause "$((ms / 1000)).$(printf '%03d' $((ms % 1000)))"
}

pause() {
    sleep "$1" &
    wait "$!"
}

# Tells the server, if it may know of the session, that nobody waits for it. Needs no file: the trainer may
# have removed its folder already.
cancel() {
    [[ -n $asked ]] || return 0
    "${CURL[@]}" --connect-timeout 1 --max-time 3 --output /dev/null --config - 2>/dev/null \
        <<<"$(curl_config POST "/sessions/${session_id:-$request_id}/cancel")"
}

# trace STATUS CAUSE: a line in a file of its own for a session without a result.
trace() {
    [[ -n ${AGENT_CLIENT_TRACE_DIR:-} ]] || return 0
    local file
    file=$AGENT_CLIENT_TRACE_DIR/$(date -u +%Y%m%dT%H%M%SZ)-${HOSTNAME:-unknown}-$$-$RANDOM.json
    if ! mkdir -p -- "$AGENT_CLIENT_TRACE_DIR" 2>/dev/null ||
        ! STATUS=$1 CAUSE=$2 SERVER_SESSION=$session_id jq -cn '{
            time: (now | todate), status: env.STATUS, cause: env.CAUSE, session_id: env.SERVER_SESSION,
            client_session_id: env.RELAX_SESSION_ID, group_id: env.RELAX_GROUP_ID, mode: env.RELAX_ROLLOUT_MODE
            }' 2>/dev/null >"$file"; then
        say "cannot write to AGENT_CLIENT_TRACE_DIR=$AGENT_CLIENT_TRACE_DIR"
    fi
}

die() {
    trap '' TERM INT HUP
    say "$1"
    cancel
    trace failed "$1"
    exit 1
}

# shellcheck disable=SC2317  # called by the trap
stop() {
    # The cancel call inherits this: a second signal to the whole process group must not end it.
    trap '' TERM INT HUP
    local running
    running=$(jobs -p)
    # shellcheck disable=SC2086  # one word per process
    [[ -z $running ]] || { kill -KILL $running && wait $running; } 2>/dev/null
    cancel
    trace cancelled 'the trainer stopped the client'
    exit 143
}

make_request() {
    local nonce safe=${RELAX_SESSION_ID//[^A-Za-z0-9._:-]/_}
    { read -r nonce </proc/sys/kernel/random/uuid; } 2>/dev/null || nonce=$$-${EPOCHREALTIME/[.,]/-}
    request_id=req-${safe:0:120}-$nonce
    REQUEST_ID=$request_id jq -n '{
        session_id: env.RELAX_SESSION_ID, group_id: env.RELAX_GROUP_ID, mode: env.RELAX_ROLLOUT_MODE,
        base_url: env.RELAX_BASE_URL, api_key: env.RELAX_SESSION_ID, request_id: env.REQUEST_ID
        }' >"$scratch/request" || die "cannot write to $scratch"
}

open_session() {
    asked=yes
    persist POST /sessions 60 "$scratch/request"
    [[ $http_code == 20[01] ]] || die "the server refused the session (HTTP $http_code): $cause"
    session_id=$answer_id
}

await_end() {
    local asked_at
    while asked_at=$SECONDS; persist GET "/sessions/$session_id?wait=$POLL_SECONDS" $((POLL_SECONDS + 15)); do
        [[ $http_code != 404 ]] || die "the server does not know session $session_id any more: it was restarted"
        [[ $http_code == 200 ]] || die "the server refused to tell of session $session_id (HTTP $http_code): $cause"
        [[ $status != completed && $status != failed && $status != cancelled ]] || return 0
        # A server with very many clients does not let all of them wait.
        ((SECONDS - asked_at > 1)) || pause 1
    done
}

write_output() {
    jq -c '
        if (.reward | type) == "number" and (.reward | isnan or isinfinite | not) then
            {metadata: ({exit_status: .agent_exit_status, submission, n_calls, task_id}
                + ((.timings // {}) | with_entries(.key += "_seconds"))), reward}
        else error("no reward") end
        ' "$scratch/answer" >"$scratch/output" 2>"$scratch/why" ||
        die "session $session_id has no usable result: $(tail -n 1 "$scratch/why")"
    # From here on the result stands, whatever the trainer signals.
    trap '' TERM INT HUP
    mv -fT -- "$scratch/output" "$RELAX_OUTPUT_JSON" || die "cannot write RELAX_OUTPUT_JSON=$RELAX_OUTPUT_JSON"
}

check_environment
trap stop TERM INT HUP
trap '[[ -z $scratch ]] || rm -rf -- "$scratch"' EXIT
scratch=$(mktemp -d -- "$(dirname -- "$RELAX_OUTPUT_JSON")/.agent_client.XXXXXX" 2>/dev/null) || {
    say "cannot write beside RELAX_OUTPUT_JSON=$RELAX_OUTPUT_JSON: is its folder there and writable?"
    exit 2
}
make_request
open_session
await_end
if [[ $status == completed ]]; then
    write_output
    exit "${exit_code:-0}"
fi
say "session $session_id $status: $cause"
trace "$status" "$cause"
[[ $exit_code =~ ^[1-9][0-9]{0,2}$ ]] || exit_code=1
exit "$exit_code"
