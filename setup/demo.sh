#!/usr/bin/env bash
# Real sessions on the sample tasks, no GPU: a server of its own, and local_relax in the trainer's place with
# scripted policies instead of a model. Fails unless every reward is the one that its policy has earned.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=setup/common.sh
source setup/common.sh

samples=$cache/samples
run=$cache/demo/$(date +%Y%m%d-%H%M%S)-$$
server_log=$run/server.log
python=.venv/bin/python
server='' relax=''

end() {
    local code=$? pid
    trap - EXIT INT TERM
    # Relax first: its sessions are cancelled through the server.
    for pid in $relax $server; do
        kill "$pid" 2>/dev/null || continue
        timeout 30 tail --pid="$pid" -f /dev/null || kill -KILL "$pid"
    done
    exit "$code"
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

server_failed() {
    tail -n 15 "$server_log" | sed 's/^/    /' >&2
    die "the agent server $1; its log is $server_log"
}

# Sets `url` once the server says that it is ready.
wait_until_ready() {
    local deadline=$((SECONDS + 120))
    until url=$(sed -n 's/.* listening on \(http[^ ]*\).*/\1/p' "$server_log") && [[ $url ]] &&
        curl -fs -o "$run/readyz.json" "$url/readyz"; do
        kill -0 "$server" 2>/dev/null || server_failed "did not start"
        ((SECONDS < deadline)) || server_failed "is not ready after 120 s"
        sleep 0.2
    done
}

mkdir -p "$run"
: >"$server_log"
# In a session of its own: Ctrl-C is for this script, which then stops the server in good order.
R2E_DATA_PATH=$samples/data R2E_SIF_DIR=$samples/sifs setsid "$python" agent_server.py --port 0 \
    --work-dir "$run/work" --train-group-size 4 --config environment.timeout=5 >"$server_log" 2>&1 </dev/null &
server=$!
wait_until_ready
echo "demo: the agent server is ready at $url; its log and the sessions' records are in $run"

# play DATA OPTION...: sessions on the tasks of a parquet file.
play() {
    local data=$samples/data/$1
    shift
    "$python" -m local_relax \
        --agent-command "bash $PWD/agent_client.sh" --agent-cwd "$PWD" \
        --agent-env "AGENT_SERVER_URL=$url" "AGENT_CLIENT_TRACE_DIR=$run/client_events" \
        --data "$data" --expect "$@" </dev/null &
    relax=$!
    wait "$relax"
    # Its number may come again.
    relax=''
}

play R2E-Gym-Subset/data/train-00000-of-00001.parquet \
    --groups 3 --group-size 4 --policies gold,noop,wrong,chatty
echo "demo: evaluation, graded by the SWE-bench harness"
play SWE-Bench-Verified/data/test-00000-of-00001.parquet --mode eval --group-size 2 --policies gold,noop
