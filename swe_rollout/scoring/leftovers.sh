# What a change to an R2E task leaves in the tree besides a solution. Runs in the judge's sandbox, in the
# task's tree, with the image's own tools and before anything of the tree is run. Called with one word:
#   added     before the change: the paths it adds at the tree's top or one folder deeper, NUL-separated
#   keep      before the change: remembers what a change cannot decide; the names of such files follow
#   withdraw  after it: the image's own stand there again; prints what the change had there, one path a
#             line. The same names follow, then `--` and paths that have to go.
# Where the tests are run from, the hidden tests and their runner are the image's anyway.
set -e
work=/tmp/.judge
root=$(pwd -P)
outside=(-path ./.git -o -path ./.venv -o -path ./r2e_tests -o -path ./run_tests.sh)

added() {
    {
        [[ ! -d /.change/tree ]] || find /.change/tree -mindepth 1 -maxdepth 2 ! -type d -printf '%P\0'
        # A patch that does not apply is told of when it is applied.
        [[ ! -f /.change/patch.diff ]] || git apply --numstat -z /.change/patch.diff | cut -z -f 3-
    } | while IFS= read -r -d '' path; do
        [[ -e $path || -L $path ]] || printf '%s\0' "$path"
    done
}

# Paths with one of the names, not looked into.
named() {
    local name tests=()
    for name in "$@"; do tests+=(-o -iname "$name"); done
    find . \( "${outside[@]}" \) -prune -o \( -false "${tests[@]}" \) -prune -print0
}

# All files below such paths with what they hold, NUL-separated, in a fixed order.
contents() {
    named "$@" | {
        xargs -0 -r sh -c 'find "$@" \( -type f -exec sha256sum -z -- {} + \) -o -type l -printf "link to %l: %p\0"' find
    } | sort -z
}

test_files() {
    find . \( "${outside[@]}" \) -prune -o \( -name 'test_*.py' -o -name '*_test.py' -o "$@" \) -printf '%P\0'
}

keep() {
    mkdir -p "$work/kept"
    named "$@" >"$work/kept_paths"
    xargs -0 -r cp -R -P --preserve=mode,timestamps,links --parents -t "$work/kept" -- <"$work/kept_paths"
    contents "$@" >"$work/contents"
    test_files -name __init__.py >"$work/test_files"
}

put_back() {
    local path folder
    named "$@" | xargs -0 -r rm -rf --
    while IFS= read -r -d '' path; do
        path=${path#./}
        folder=/${path%/*}
        [[ $path == */* ]] || folder=
        # Never through a link, which may lead out of the tree; and not where the folder is gone.
        (cd -P -- "$root$folder" 2>/dev/null && [[ $PWD == "$root$folder" ]]) || continue
        cp -R -P --preserve=mode,timestamps,links -- "$work/kept/$path" "$root/$path"
    done <"$work/kept_paths"
}

# New test files, which some runners would collect. One in a package of the image may be a module of it
# that only looks like a test, unless the package is one of tests.
new_tests() {
    local path folder
    local -A known=()
    while IFS= read -r -d '' path; do known[$path]=1; done <"$work/test_files"
    test_files -false | while IFS= read -r -d '' path; do
        folder=${path%/*}
        if [[ ${known[$path]} ]]; then continue; fi
        if [[ $path == */* && ${known[$folder/__init__.py]} && ! /$folder/ =~ /[Tt]ests?/ ]]; then continue; fi
        printf '%s\0' "$path"
    done
}

withdraw() {
    local names=() path
    while [[ $1 != -- ]]; do
        names+=("$1")
        shift
    done
    shift
    contents "${names[@]}" >"$work/contents_now"
    if ! cmp -s "$work/contents" "$work/contents_now"; then
        put_back "${names[@]}"
        # Behind 64 digits and two blanks, or behind a link's target.
        sort -z "$work/contents" "$work/contents_now" | uniq -z -u | sed -z -E 's/^(.{64}  |link to .*: )\.\///' |
            sort -zu | while IFS= read -r -d '' path; do printf '%q\n' "$path"; done
    fi
    new_tests >"$work/new_tests"
    while IFS= read -r -d '' path; do
        rm -rf -- "$path"
        printf '%q\n' "$path"
    done < <(cat "$work/new_tests"; (($# == 0)) || printf '%s\0' "$@")
}

"$@"
