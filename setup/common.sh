# Shared by the setup scripts, which source it: progress lines, a log for the noisy tools, apt.
set -euo pipefail

# shellcheck disable=SC2034 # read by the scripts that source this
readonly INSTALL_GUIDE=https://apptainer.org/docs/admin/main/installation.html
# Root's home is closed to the user that its sandboxes run as.
if [[ $(id -u) == 0 ]]; then cache=/var/cache/swe-rollout; else cache=~/.cache/swe-rollout; fi
cache=${SWE_ROLLOUT_CACHE:-$cache}
log=$cache/setup.log
export DEBIAN_FRONTEND=noninteractive
# useradd lives outside an ordinary user's PATH.
PATH=$PATH:/usr/sbin:/sbin

say() { printf 'setup: %s\n' "$1"; }

# A script may set `advice` to end every failure with what to do about it.
die() {
    printf 'setup: %s%s\n' "$1" "${advice:+; $advice}" >&2
    exit 1
}

is_root() { [[ $(id -u) == 0 ]]; }

have() { command -v "$1" >/dev/null; }

# quietly WHAT COMMAND...: output goes to the log; a failure shows the log's end and stops setup.
quietly() {
    local what=$1
    shift
    "$@" >>"$log" 2>&1 </dev/null && return
    tail -n 15 "$log" | sed 's/^/    /' >&2
    die "$what failed; the whole log is in $log"
}

apt() { apt-get -q -y -o Acquire::Retries=5 -o DPkg::Lock::Timeout=300 "$@"; }

# Package lists are read once per setup, and only by a step that has something to install.
apt_refresh() {
    [[ ${SETUP_APT_FRESH:-} ]] && return
    say "reading the package lists"
    # One broken source among several need not matter: the install that follows tells.
    apt update >>"$log" 2>&1 </dev/null || say "apt-get update failed ($log); going on with the lists that are there"
    export SETUP_APT_FRESH=1
}

apt_install() {
    apt_refresh
    say "installing $*"
    # A first failure may be due to an earlier run that was cut short between unpacking and configuring.
    apt install --no-install-recommends "$@" >>"$log" 2>&1 </dev/null ||
        dpkg --configure -a >>"$log" 2>&1 </dev/null || true
    quietly "apt-get install" apt install --no-install-recommends "$@"
}
