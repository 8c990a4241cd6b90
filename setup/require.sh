# Sourced by the scripts at the top of the checkout: everything that is missing is told in one message.

# A script may put here how to get what: [NAME]="..."
declare -A how_to_get=()

# require "VARIABLE..." "COMMAND..."
require() {
    local name missing=() advice=()
    for name in $1; do
        [[ ${!name:-} ]] || {
            missing+=("the variable $name")
            advice+=("$name")
        }
    done
    for name in $2; do
        command -v "$name" >/dev/null || {
            missing+=("the command $name")
            advice+=("$name")
        }
    done
    ((${#missing[@]} == 0)) && return
    printf -v name '%s, ' "${missing[@]}"
    printf '%s: missing: %s\n' "${0##*/}" "${name%, }" >&2
    for name in "${advice[@]}"; do
        [[ -z ${how_to_get[$name]:-} ]] || printf '    %s: %s\n' "$name" "${how_to_get[$name]}" >&2
    done
    exit 1
}
