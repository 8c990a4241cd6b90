#!/usr/bin/env bash
# Puts a working `apptainer` on PATH, by the first way that this machine allows:
# one that is there already; the distribution's own package; Debian unstable's
# package beside a private libc (for Debian and Ubuntu whose glibc is too old for it).
set -euo pipefail

readonly PRIVATE_LIBC=/usr/local/lib/apptainer-libc
readonly INSTALL_GUIDE=https://apptainer.org/docs/admin/main/installation.html

die() {
    printf 'setup: %s; install Apptainer by hand: %s\n' "$1" "$INSTALL_GUIDE" >&2
    exit 1
}

works() { command -v apptainer >/dev/null && apptainer --version >/dev/null 2>&1; }

# The mirror this machine already uses, so that a site's own mirror is kept.
mirror_uri() {
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -E '/debian/?$' | head -n 1
}

# apt-get with a sources file and lists folder of its own: the system's are never touched.
unstable_apt() {
    apt-get -q -o "Dir::Etc::sourcelist=$scratch/unstable.list" -o Dir::Etc::sourceparts=- \
        -o "Dir::State::lists=$scratch/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= \
        -o APT::Sandbox::User=root "$@"
}

# The package's programs are linked against a newer glibc than the system's: they get a
# loader and libraries of their own, and nothing else on the machine sees those.
install_with_private_libc() {
    local mirror keyring package program libraries
    mirror=$(mirror_uri)
    [[ $mirror ]] || mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -n 1)
    [[ $mirror ]] || die "no Debian mirror in apt's sources"
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    [[ -r $keyring ]] || die "no Debian archive keyring at $keyring"
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    mkdir -p "$scratch/lists/partial" "$scratch/debs"
    echo "deb [signed-by=$keyring] $mirror unstable main" >"$scratch/unstable.list"
    unstable_apt update >/dev/null || die "cannot read Debian unstable's package list"
    (cd "$scratch/debs" && unstable_apt download apptainer libc6 libseccomp2 libsqlite3-0 >/dev/null) ||
        die "cannot download Apptainer from Debian unstable"
    for package in "$scratch"/debs/*.deb; do dpkg -x "$package" "$scratch/root"; done

    mkdir -p "$PRIVATE_LIBC"
    libraries=$(find "$scratch/root" -path '*/x86_64-linux-gnu/*.so*' -not -path '*/gconv/*' -not -path '*/apptainer/*')
    xargs -d '\n' cp -a -t "$PRIVATE_LIBC" <<<"$libraries"
    cp -aT "$scratch/root/usr/lib/x86_64-linux-gnu/apptainer" /usr/lib/x86_64-linux-gnu/apptainer
    [[ -e /etc/apptainer ]] || cp -aT "$scratch/root/etc/apptainer" /etc/apptainer
    mkdir -p /var/lib/apptainer/mnt/session
    cp -a "$scratch/root/usr/bin/apptainer" /usr/local/bin/apptainer.new
    for program in /usr/local/bin/apptainer.new /usr/lib/x86_64-linux-gnu/apptainer/bin/starter; do
        patchelf --set-interpreter "$PRIVATE_LIBC/ld-linux-x86-64.so.2" --force-rpath --set-rpath "$PRIVATE_LIBC" "$program"
    done
    # The name appears last: a setup that was cut short starts again.
    mv /usr/local/bin/apptainer.new /usr/bin/apptainer
}

main() {
    works && exit 0
    [[ $(id -u) == 0 ]] || die "no apptainer on PATH and not root"
    command -v apt-get >/dev/null || die "no apptainer on PATH and no apt-get"
    if apt-cache policy apptainer | grep -q 'Candidate: [0-9]'; then
        apt-get install -y -q --no-install-recommends apptainer >/dev/null || die "apt-get cannot install apptainer"
    elif [[ $(dpkg --print-architecture) == amd64 ]]; then
        install_with_private_libc
    else
        die "no apptainer package for this machine"
    fi
    works || die "apptainer was installed but does not start"
}

main
