# Sourced by the scripts at the top of the checkout: everything that is missing is told in one message.

# require "VARIABLE..." "COMMAND..."
require() {
    local name missing=()
    for name in $1; do
        [[ ${!name:-} ]] || missing+=("the variable $name")
    done
    for name in $2; do
        command -v "$name" >/dev/null || missing+=("the command $name")
    done
    ((${#missing[@]} == 0)) && return
    printf -v name '%s, ' "${missing[@]}"
    printf '%s: missing: %s\n' "${0##*/}" "${name%, }" >&2
    exit 1
}
