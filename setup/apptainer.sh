#!/usr/bin/env bash
# Puts a working `apptainer` on PATH, by the first way that this machine allows:
# one that is there already; the distribution's own package; on Debian, unstable's
# package beside a private libc (the release's own glibc is too old for it).
# shellcheck source=setup/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

readonly PRIVATE_LIBC=/usr/local/lib/apptainer-libc

advice="install Apptainer by hand: $INSTALL_GUIDE"

# `apptainer --version` alone would not miss a lost starter or configuration.
works() {
    local settings
    settings=$(apptainer buildcfg 2>/dev/null) || return
    [[ -x $(sed -n 's/^LIBEXECDIR=//p' <<<"$settings")/apptainer/bin/starter ]] &&
        [[ -r $(sed -n 's/^APPTAINER_CONF_FILE=//p' <<<"$settings") ]]
}

# The mirror this machine already uses, so that a site's own mirror is kept.
mirror_uri() {
    local uris
    # shellcheck disable=SC2016 # apt expands it
    uris=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages')
    grep -m 1 -E '/debian/?$' <<<"$uris" || head -n 1 <<<"$uris"
}

# apt-get with a sources file and lists folder of its own: the system's are never touched.
unstable_apt() {
    apt -o "Dir::Etc::sourcelist=$scratch/unstable.list" -o Dir::Etc::sourceparts=- \
        -o "Dir::State::lists=$scratch/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= \
        -o APT::Sandbox::User=root "$@"
}

# Downloads packages of unstable and unpacks them under $scratch/root.
fetch() {
    mkdir -p "$scratch/debs"
    (cd "$scratch/debs" && quietly "downloading $* of Debian unstable" unstable_apt download "$@")
    for package in "$scratch"/debs/*.deb; do dpkg -x "$package" "$scratch/root"; done
}

# place SOURCE TARGET: the target is never seen half written, and may be in use.
place() {
    rm -rf "$2.new"
    mkdir -p "$(dirname "$2")"
    cp -aT "$1" "$2.new"
    rm -rf "$2"
    mv -T "$2.new" "$2"
}

# The package's programs are linked against a newer glibc than the system's: they get a
# loader and libraries of their own, and nothing else on the machine sees those.
install_with_private_libc() {
    local mirror keyring=/usr/share/keyrings/debian-archive-keyring.gpg needs program unpacked
    have patchelf || apt_install patchelf
    mirror=$(mirror_uri)
    [[ $mirror ]] || die "no Debian mirror in apt's sources"
    [[ -r $keyring ]] || die "no Debian archive keyring at $keyring"
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    mkdir -p "$scratch/lists/partial"
    echo "deb [signed-by=$keyring] $mirror unstable main" >"$scratch/unstable.list"
    quietly "reading Debian unstable's package list" unstable_apt -o APT::Update::Error-Mode=any update
    fetch apptainer
    needs=$(dpkg-deb -f "$scratch"/debs/apptainer_*.deb Depends | grep -oE '\blib[a-z0-9.+-]+')
    # shellcheck disable=SC2086 # a list of package names
    fetch $needs

    unpacked=$scratch/root/usr/lib/x86_64-linux-gnu
    for program in "$scratch/root/usr/bin/apptainer" "$unpacked/apptainer/bin/starter"; do
        quietly "patchelf" patchelf --set-interpreter "$PRIVATE_LIBC/ld-linux-x86-64.so.2" \
            --force-rpath --set-rpath "$PRIVATE_LIBC" "$program"
    done
    mkdir "$scratch/libraries"
    find "$scratch/root" -path '*/x86_64-linux-gnu/*.so*' -not -path '*/gconv/*' -not -path '*/apptainer/*' \
        -exec cp -a -t "$scratch/libraries" {} +
    place "$scratch/libraries" "$PRIVATE_LIBC"
    place "$unpacked/apptainer" /usr/lib/x86_64-linux-gnu/apptainer
    [[ -r /etc/apptainer/apptainer.conf ]] || place "$scratch/root/etc/apptainer" /etc/apptainer
    mkdir -p /var/lib/apptainer/mnt/session
    # In /usr/bin, because the program looks for its parts relative to itself; and last, so that
    # a setup that was cut short starts again.
    place "$scratch/root/usr/bin/apptainer" /usr/bin/apptainer
}

main() {
    local architecture
    works && return
    have apptainer && say "$(command -v apptainer) does not work; installing another"
    have apt-get || die "no working apptainer on PATH, and no apt-get"
    is_root || die "no working apptainer on PATH, and not root"
    mkdir -p "$cache"
    apt_refresh
    architecture=$(dpkg --print-architecture)
    if LC_ALL=C apt-cache policy apptainer | grep -q 'Candidate: [0-9]'; then
        apt_install apptainer
    elif grep -qx 'ID=debian' /etc/os-release && [[ $architecture == amd64 ]]; then
        say "installing apptainer from Debian unstable, beside a libc of its own"
        install_with_private_libc
    else
        die "this distribution has no apptainer package for $architecture"
    fi
    works || die "apptainer was installed but does not start"
}

main
