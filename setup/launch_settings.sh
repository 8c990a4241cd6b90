# Sourced by run_mini_swe_agent.sh: its settings with their defaults, checked before anything is started.
# shellcheck disable=SC2034,SC2154 # what these scripts share is told by run_mini_swe_agent.sh

settle_settings() {
    : "${RELAX_DIR:=$here/../..}" "${EXP_ROOT:=$SAVE_DIR/mini_swe_agent}" "${RELAX_GENERATION:=C}" "${ENABLE_EVAL:=0}"
    : "${MODEL_NAME:=Qwen3.5-35B-A3B}" "${RELAX_TRAIN_COMMAND:=python3 -m relax.entrypoints.train}"
    : "${ROLLOUT_BATCH_SIZE:=16}" "${N_SAMPLES_PER_PROMPT:=8}" "${N_SAMPLES_PER_EVAL_PROMPT:=1}"
    : "${AGENT_SERVER_HOST:=127.0.0.1}" "${AGENT_SERVER_PORT:=8765}" "${AGENT_SERVER_WORK_DIR:=$EXP_ROOT/agent_server}"
    : "${AGENT_SERVER_TRAIN_CONCURRENCY:=64}" "${AGENT_SERVER_EVAL_CONCURRENCY:=64}"
    : "${SERVER_START_SECONDS:=300}" "${SERVER_BLAS_THREADS:=2}"
    local name
    # The server, Ray and the agents each run in folders of their own.
    for name in RELAX_DIR MODEL_DIR SAVE_DIR EXP_ROOT AGENT_SERVER_WORK_DIR MINI_SWE_AGENT_VENV R2E_DATA_PATH \
        R2E_SIF_DIR MODEL_ARGS_FILE AGENT_SERVER_TOKEN_FILE AGENT_SERVER_VALIDATED AGENT_CLIENT_TRACE_DIR; do
        [[ -z ${!name:-} ]] || printf -v "$name" %s "$(realpath -ms -- "${!name}")"
    done
    : "${MODEL_ARGS_FILE:=$RELAX_DIR/scripts/models/${MODEL_NAME,}.sh}"
    : "${AGENT_CLIENT_TRACE_DIR:=$AGENT_SERVER_WORK_DIR/client_events}"
    run_id=$(date -u +%Y%m%dT%H%M%SZ)-$$-$RANDOM
    log=$AGENT_SERVER_WORK_DIR/logs/server-$run_id.log
    job=mini_swe_agent-$run_id
    dummy_prompts=$EXP_ROOT/dummy_prompts.jsonl
    # Relax C puts each evaluation sample in a group of its own.
    eval_group_size=1
    [[ $RELAX_GENERATION == C ]] || eval_group_size=$N_SAMPLES_PER_EVAL_PROMPT
    url=$AGENT_SERVER_HOST
    [[ $url != *:* ]] || url="[$url]"
    url=${AGENT_SERVER_URL:-http://$url:$AGENT_SERVER_PORT}
    url=${url%"${url##*[!/]}"}
}

check_settings() {
    local name
    for name in ROLLOUT_BATCH_SIZE N_SAMPLES_PER_PROMPT N_SAMPLES_PER_EVAL_PROMPT AGENT_SERVER_PORT \
        AGENT_SERVER_TRAIN_CONCURRENCY AGENT_SERVER_EVAL_CONCURRENCY SERVER_START_SECONDS SERVER_BLAS_THREADS; do
        [[ ${!name} =~ ^[1-9][0-9]*$ ]] || die "$name=${!name} is not a whole number above 0"
    done
    [[ $RELAX_GENERATION == [ABC] ]] || die "RELAX_GENERATION=$RELAX_GENERATION is not A, B or C"
    [[ $ENABLE_EVAL == [01] ]] || die "ENABLE_EVAL=$ENABLE_EVAL is neither 0 nor 1"
    [[ -e $RELAX_DIR/scripts/entrypoint/local.sh ]] ||
        die "RELAX_DIR=$RELAX_DIR is not a Relax checkout: it has no scripts/entrypoint/local.sh"
    [[ $url =~ ^https?://. ]] || die "AGENT_SERVER_URL=$url is not an http:// or https:// address"
    [[ -z $elsewhere ]] || return 0
    [[ -x $MINI_SWE_AGENT_VENV/bin/python ]] ||
        die "MINI_SWE_AGENT_VENV=$MINI_SWE_AGENT_VENV is not a virtual environment: it has no bin/python"
    [[ ! $AGENT_SERVER_HOST =~ ^(0\.0\.0\.0|::)$ ]] ||
        die "AGENT_SERVER_HOST=$AGENT_SERVER_HOST is no address that agents could call: give the one of this machine that the other nodes reach"
}

explain_slots() {
    local groups=${AGENTIC_CONCURRENCY:-${OVER_SAMPLING_BATCH_SIZE:-$ROLLOUT_BATCH_SIZE}} sessions
    groups=${groups/none/$ROLLOUT_BATCH_SIZE}
    sessions=$((groups * N_SAMPLES_PER_PROMPT))
    ((AGENT_SERVER_TRAIN_CONCURRENCY >= sessions)) ||
        say "warning: $groups groups x $N_SAMPLES_PER_PROMPT samples = $sessions sessions share AGENT_SERVER_TRAIN_CONCURRENCY=$AGENT_SERVER_TRAIN_CONCURRENCY slots; none is needed to wait for the model's first answer, so no group is held up, but first commands queue for a slot"
}
