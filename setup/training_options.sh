# Sourced by run_mini_swe_agent.sh: the options that Relax's training is given, in `options`.
#
# Each is set by the variable of its name (--rollout-batch-size: ROLLOUT_BATCH_SIZE). An empty variable counts as not
# set; the word none leaves the option out, and so Relax's own default in force.
# shellcheck disable=SC2034,SC2154 # what these scripts share is told by run_mini_swe_agent.sh

options=()

# option NAME [DEFAULT]: --name VALUE
option() {
    local value=${!1:-${2:-none}} name=${1,,}
    [[ $value == none ]] || options+=("--${name//_/-}" "$value")
}

# switch NAME DEFAULT: --name if the value is 1, nothing if it is 0
switch() {
    local value=${!1:-$2} name=${1,,}
    case $value in
        1) options+=("--${name//_/-}") ;;
        0) ;;
        *) die "$1=$value is neither 0 nor 1" ;;
    esac
}

agent_options() {
    options+=(--use-agentic-rollout
        --agent-command "bash $(printf %q "$here/agent_client.sh")"
        --agent-cwd "$here"
        # Once, with all values: Relax takes the last occurrence only.
        --agent-env "AGENT_SERVER_URL=$url" "AGENT_CLIENT_TRACE_DIR=$AGENT_CLIENT_TRACE_DIR")
    local file=${AGENT_SERVER_TOKEN_FILE:-$token_file}
    [[ -z $file ]] || options+=("AGENT_SERVER_TOKEN_FILE=$file")
    option AGENT_TIMEOUT 7200
    if [[ $RELAX_GENERATION != A ]]; then
        # Without the tool call parser no call of the model is ever seen, and every reward is 0.
        option AGENTIC_TOOL_CALL_PARSER qwen3_coder
        option AGENTIC_REASONING_PARSER qwen3
    fi
    if [[ $RELAX_GENERATION == C ]]; then
        option AGENTIC_CONCURRENCY
        switch AGENTIC_PRELAUNCH 0
    else
        option AGENTIC_PREPARE_POOL_SIZE 0
    fi
}

rollout_options() {
    option PROMPT_DATA "$dummy_prompts"
    option NUM_ROLLOUT 1000
    option ROLLOUT_BATCH_SIZE
    option N_SAMPLES_PER_PROMPT
    option GLOBAL_BATCH_SIZE $((ROLLOUT_BATCH_SIZE * N_SAMPLES_PER_PROMPT))
    option OVER_SAMPLING_BATCH_SIZE
    option DYNAMIC_SAMPLING_FILTER_PATH
    switch PARTIAL_ROLLOUT 0
    [[ ${PARTIAL_ROLLOUT:-0} == 0 ]] || option PARTIAL_ROLLOUT_MAX_ABORTED_COUNT 3
    option ROLLOUT_MAX_RESPONSE_LEN 8192
    option ROLLOUT_MAX_CONTEXT_LEN 32768
    option ROLLOUT_TEMPERATURE 1
    option DUMP_DETAILS "$EXP_ROOT/dump"
    option SAVE_DEBUG_ROLLOUT_DATA
    switch USE_FAULT_TOLERANCE 1
    switch USE_HEALTH_CHECK 0
}

eval_options() {
    option EVAL_INTERVAL 100
    options+=(--eval-prompt-data r2e_eval "${PROMPT_DATA:-$dummy_prompts}")
    option N_SAMPLES_PER_EVAL_PROMPT
    option EVAL_MAX_CONTEXT_LEN
    switch SKIP_EVAL_BEFORE_TRAIN 0
    if [[ $RELAX_GENERATION == C ]]; then
        option AGENTIC_EVAL_CONCURRENCY 50
    else
        option AGENTIC_EVAL_PREPARE_POOL_SIZE 50
    fi
}

algorithm_options() {
    option ADVANTAGE_ESTIMATOR grpo
    switch DISABLE_GRPO_STD_NORMALIZATION 1
    switch USE_TIS 1
    option KL_LOSS_COEF 0.0
    option ENTROPY_COEF 0.0
    option EPS_CLIP 0.2
    option EPS_CLIP_HIGH 0.28
    option OPTIMIZER adam
    option LR 1e-6
    option LR_DECAY_STYLE constant
    switch OPTIMIZER_CPU_OFFLOAD 1
    switch OVERLAP_CPU_OPTIMIZER_D2H_H2D 1
    switch USE_PRECISION_AWARE_OPTIMIZER 1
}

cluster_options() {
    switch COLOCATE 1
    option MAX_STALENESS 0
    # The blanks matter: ray quotes words that have some, and a shell would take the braces of others apart.
    option RESOURCE '{"actor": [1, 8], "rollout": [1, 8]}'
    option NUM_DATA_STORAGE_UNITS 1
    option ROLLOUT_NUM_GPUS_PER_ENGINE 4
    option SGLANG_MEM_FRACTION_STATIC 0.75
    option SGLANG_LOAD_FORMAT dummy
    option TENSOR_MODEL_PARALLEL_SIZE 2
    switch SEQUENCE_PARALLEL 1
    option CONTEXT_PARALLEL_SIZE 4
    option EXPERT_MODEL_PARALLEL_SIZE 8
    switch USE_DYNAMIC_BATCH_SIZE 1
    option MAX_TOKENS_PER_GPU 8192
    option RECOMPUTE_GRANULARITY full
    option RECOMPUTE_METHOD uniform
    option RECOMPUTE_NUM_LAYERS 1
    switch NO_ROPE_FUSION 1
}

model_options() {
    option HF_CHECKPOINT "$MODEL_DIR/$MODEL_NAME"
    option REF_LOAD "$MODEL_DIR/$MODEL_NAME"
    option MEGATRON_TO_HF_MODE bridge
    option LOAD
    option SAVE "$SAVE_DIR/$MODEL_NAME"
    option SAVE_INTERVAL 20
    switch USE_CLEARML 0
    switch USE_METRICS_SERVICE 0
    option TB_PROJECT_NAME
    option TB_EXPERIMENT_NAME
    # Megatron is told the model's shape by a file of Relax, which sets MODEL_ARGS.
    MODEL_ARGS=()
    if [[ -e $MODEL_ARGS_FILE ]]; then
        set +eu
        # shellcheck source=/dev/null
        source "$MODEL_ARGS_FILE"
        set -eu
        options+=("${MODEL_ARGS[@]}")
    else
        say "warning: $MODEL_ARGS_FILE is not there: Megatron is not told the shape of $MODEL_NAME; set MODEL_ARGS_FILE to the file of Relax that sets MODEL_ARGS for it"
    fi
}

collect_options() {
    agent_options
    rollout_options
    [[ $ENABLE_EVAL == 0 ]] || eval_options
    algorithm_options
    cluster_options
    model_options
}

# refuse_repeated WORD...: an option of the command line that is there already
refuse_repeated() {
    local word own
    for word in "$@"; do
        for own in "${options[@]}"; do
            [[ $word != --* || ${word%%=*} != "$own" ]] ||
                die "$own is set already, and Relax takes one occurrence only: use the variable for it (setup/training_options.sh)"
        done
    done
}
