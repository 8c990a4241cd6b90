# What a change to an R2E task leaves in the tree besides a solution. Runs in the judge's sandbox, in the
# task's tree, with the image's own tools and before anything of the tree is run. Called with one word:
#   touched   before the change: the paths it speaks of, NUL-separated
#   added     before the change: those at the tree's top or one folder deeper that are new, NUL-separated
#   tests     before the change: the files whose path holds `test`, NUL-separated
#   keep      before the change: remembers what a change cannot decide; names of such files follow, then
#             `--` and paths
#   withdraw  after it: the image's own stand there again; prints what the change had there,
#             NUL-separated. The same follows, then `--` and paths that have to go.
# Where the tests are run from, the hidden tests and their runner are the image's anyway.
set -e
# In another one, patterns match no name that has bytes without a meaning in it.
export LC_ALL=C
work=/tmp/.judge
root=$(pwd -P)
outside=(-path ./.git -o -path ./.venv -o -path ./r2e_tests -o -path ./run_tests.sh)

# The words up to `--`, in `words`; how many they were with it, in `taken`.
take_words() {
    words=()
    while (($#)) && [[ $1 != -- ]]; do
        words+=("$1")
        shift
    done
    taken=$((${#words[@]} + 1))
}

touched() {
    # What it writes is among what has to go first.
    [[ ! -d /.change/tree ]] || cat /.change/removed
    # Forwards the new name of what is moved, backwards the old one. A patch that does not apply is told of when it is
    # applied.
    [[ ! -f /.change/patch.diff ]] || for way in '' -R; do
        git apply $way --numstat -z /.change/patch.diff | cut -z -f 3-
    done
}

added() {
    local path
    touched | while IFS= read -r -d '' path; do
        [[ $path == */*/* || -e $path || -L $path ]] || printf '%s\0' "$path"
    done
}

tests() {
    find . \( "${outside[@]}" \) -prune -o ! -type d -ipath '*test*' -printf '%P\0'
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

keep_copies() {
    mkdir -p "$work/$1"
    xargs -0 -r cp -R -P --preserve=mode,timestamps,links --parents -t "$work/$1" --
}

keep() {
    take_words "$@"
    shift "$taken"
    mkdir -p "$work"
    named "${words[@]}" >"$work/named"
    keep_copies kept_names <"$work/named"
    contents "${words[@]}" >"$work/contents"
    { (($# == 0)) || printf '%s\0' "$@"; } | keep_copies kept_paths
}

# in_tree FOLDER: sets `folder` to where it is when all links are followed; fails where that is out of the tree.
declare -A found
in_tree() {
    if [[ ! ${found[/$1]} ]]; then
        folder=$(realpath -m -- "$root/$1" 2>/dev/null) && [[ $folder/ == "$root"/* ]] || folder=/
        found[/$1]=$folder
    fi
    folder=${found[/$1]}
    [[ $folder != / ]]
}

# put_back KEPT PATH: the copy of PATH in KEPT, to `folder`.
put_back() {
    cp -R -P --preserve=mode,timestamps,links -- "$work/$1/$2" "$folder/${2##*/}"
}

put_back_names() {
    local path folder
    named "$@" | xargs -0 -r rm -rf --
    while IFS= read -r -d '' path; do
        path=${path#./}
        # Not where the folder is gone.
        if in_tree "$(dirname -- "$path")" && [[ -d $folder ]]; then put_back kept_names "$path"; fi
    done <"$work/named"
}

put_back_paths() {
    local path folder
    local -A made=()
    for path in "$@"; do
        if [[ -L $path || -L $work/kept_paths/$path ]]; then
            [[ $(readlink -- "$path") != "$(readlink -- "$work/kept_paths/$path")" ]] || continue
        elif [[ -f $path ]] && cmp -s -- "$path" "$work/kept_paths/$path"; then
            continue
        fi
        printf '%s\0' "$path"
        folder=.
        [[ $path != */* ]] || folder=${path%/*}
        in_tree "$folder" || continue
        [[ ${made[$folder]} ]] || mkdir -p -- "$folder" 2>/dev/null || continue
        made[$folder]=1
        if [[ $folder/${path##*/} == "$root/$path" ]]; then
            printf '%s\0' "$path" >&3
        else
            rm -rf -- "$path"
            put_back kept_paths "$path"
        fi
    done 3>"$work/in_place"
    # Those that no link leads to, at once: they may be thousands.
    xargs -0 -r rm -rf -- <"$work/in_place"
    cd "$work/kept_paths"
    xargs -0 -r cp -R -P --preserve=mode,timestamps,links --parents -t "$root" -- <"$work/in_place"
    cd "$root"
}

withdraw() {
    local path names
    take_words "$@"
    shift "$taken"
    names=("${words[@]}")
    take_words "$@"
    shift "$taken"
    for path in "$@"; do
        [[ ! -L $path && (! -e $path || -d $path) ]] || printf '%s\0' "$path"
    done | tee "$work/surplus"
    xargs -0 -r rm -rf -- <"$work/surplus"
    put_back_paths "${words[@]}"
    contents "${names[@]}" >"$work/contents_now"
    if ! cmp -s "$work/contents" "$work/contents_now"; then
        put_back_names "${names[@]}"
        # Behind 64 digits and two blanks, or behind a link's target.
        sort -z "$work/contents" "$work/contents_now" | uniq -z -u | sed -z -E 's/^(.{64}  |link to .*: )\.\///'
    fi
}

"$@"
