#!/usr/bin/env bash
# Installs what this machine lacks to run the project, and tries a real sandbox at the end.
# Every step looks at the thing itself first, so a second run does nothing and a lost part comes back.
#   PYTHON                     the Python to build .venv from (default python3)
#   SWE_ROLLOUT_CACHE          folder outside the checkout for uv, logs and samples
#                              (default /var/cache/swe-rollout for root, else ~/.cache/swe-rollout)
#   AGENT_SERVER_SANDBOX_USER  user that sandboxes run as when the server is root
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=setup/common.sh
source setup/common.sh

python=${PYTHON:-python3}
sandbox_user=${AGENT_SERVER_SANDBOX_USER:-swe-sandbox}
uv=$cache/uv/bin/uv
export UV_PYTHON_DOWNLOADS=never UV_HTTP_RETRIES=5 UV_HTTP_TIMEOUT=120 UV_NO_PROGRESS=1
readonly -A PACKAGE_OF=(
    [mksquashfs]=squashfs-tools [squashfuse]=squashfuse [fuse-overlayfs]=fuse-overlayfs [fuse2fs]=fuse2fs
    [fusermount3]=fuse3 [newuidmap]=uidmap [useradd]=passwd [patchelf]=patchelf [mmdebstrap]=mmdebstrap
    [docker-registry]=docker-registry [skopeo]=skopeo [unsquashfs]=squashfs-tools
    [pip3]=python3-pip [jq]=jq [curl]=curl [git]=git [shellcheck]=shellcheck
)

python_works() { "$python" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }

ensure_packages() {
    local command missing=()
    for command in "${!PACKAGE_OF[@]}"; do
        have "$command" || missing+=("${PACKAGE_OF[$command]}")
    done
    python_works || [[ $python != python3 ]] || missing+=(python3 python3-venv)
    if ((${#missing[@]})); then
        if is_root && have apt-get; then
            apt_install "${missing[@]}"
        else
            say "not installed here: ${missing[*]} (as root on Debian: apt-get install ${missing[*]})"
        fi
    fi
    python_works || die "$python is not a Python 3.10 or newer with venv; name one: make setup PYTHON=/path/to/python3"
}

ensure_uv() {
    local wanted
    wanted=$(sed -n 's/^uv==\([^ ]*\).*/\1/p' setup/uv.txt)
    [[ $("$uv" --version 2>/dev/null) == "uv $wanted "* ]] && return
    say "installing uv $wanted in $cache/uv"
    rm -rf "$cache/uv.new"
    quietly "python -m venv" "$python" -m venv "$cache/uv.new"
    quietly "pip install uv" "$cache/uv.new/bin/python" -m pip install --require-hashes --only-binary :all: \
        --no-deps --retries 5 --disable-pip-version-check -r setup/uv.txt
    rm -rf "$cache/uv"
    mv "$cache/uv.new" "$cache/uv"
}

sync_venv() {
    "$uv" pip sync --python .venv/bin/python --require-hashes "$@" requirements.lock
}

# .venv holds exactly requirements.lock. A mark is left in it while packages are put in place:
# one found at the start means a run that was cut short, whose packages cannot be trusted.
ensure_venv() {
    local mark=.venv/.unfinished
    if [[ -e $mark ]] || ! .venv/bin/python -c '' 2>/dev/null; then
        say "making .venv"
        rm -rf .venv
        quietly "uv venv" "$uv" venv --python "$("$python" -c 'import sys; print(sys.executable)')" .venv
    fi
    touch "$mark"
    # Without the network first: nothing to fetch is the usual case, and asks no registry.
    if ! sync_venv --offline >>"$log" 2>&1; then
        say "installing the Python packages of requirements.lock"
        quietly "uv pip sync" sync_venv
    fi
    rm "$mark"
}

# Sandboxes of a server run by root would be uid 0 of the host: they get a user of their own.
ensure_sandbox_user() {
    is_root || return 0
    getent passwd "$sandbox_user" >/dev/null && return
    say "adding the system user $sandbox_user"
    quietly "useradd $sandbox_user" useradd --system --user-group --no-create-home --home-dir /nonexistent \
        --shell /usr/sbin/nologin "$sandbox_user"
}

# An unprivileged sandbox mounts its image through /dev/fuse.
ensure_fuse() {
    if [[ ! -c /dev/fuse ]]; then
        say "/dev/fuse is missing (load the kernel's fuse module; in a container, start it with --device /dev/fuse)"
    elif ((8#$(stat -c %a /dev/fuse) % 8 < 6)); then
        if is_root; then
            say "opening /dev/fuse to all users (chmod 666)"
            chmod 666 /dev/fuse
        elif [[ ! -r /dev/fuse || ! -w /dev/fuse ]]; then
            say "/dev/fuse is closed to you (as root: chmod 666 /dev/fuse)"
        fi
    fi
}

# What the outcome of the sandbox try hangs on; a reboot may change the kernel's settings.
sandbox_fingerprint() {
    {
        id
        env | grep '^AGENT_SERVER_' | sort
        cat /proc/sys/kernel/random/boot_id
        id "$sandbox_user" 2>&1
        stat -c '%n %s %Y %a' /dev/fuse "$(command -v apptainer)" 2>&1
        for command in "${!PACKAGE_OF[@]}"; do command -v "$command"; done
        find swe_rollout/sandbox -type f -not -path '*/__pycache__/*' -exec sha256sum {} + | sort
    } | sha256sum
}

# Sets `found` to the one line that the try prints: which confinement works here, and why that one.
try_sandbox() {
    local record=.venv/.sandbox-tried fingerprint
    fingerprint=$(sandbox_fingerprint)
    if [[ -r $record && $(head -n 1 "$record") == "$fingerprint" ]]; then
        found=$(tail -n +2 "$record")
        return
    fi
    say "trying a sandbox"
    found=$(.venv/bin/python -m swe_rollout.sandbox.probe 2>>"$log" 9>&-) || die "$(tail -n 1 "$log")"
    printf '%s\n%s\n' "$fingerprint" "$found" >"$record.new"
    mv "$record.new" "$record"
}

mkdir -p "$cache"
# Whatever umask is in force: sandboxes read the images below.
[[ ! -O $cache ]] || chmod a+rx "$cache"
exec 9>"$cache/setup.lock"
flock -n 9 || {
    say "waiting for another setup to end"
    flock 9
}
: >"$log"
ensure_packages
ensure_uv
ensure_venv
setup/apptainer.sh
ensure_sandbox_user
ensure_fuse
try_sandbox
say "ready: $found"
