# Puts a submission on the image's own tree. Runs in the judge's sandbox, in the task's tree, with the
# harness' commands in the harness' order (swebench.harness.run_evaluation). Called with one word:
#   keep     before the patch: remembers the tree's state and the files that a submission cannot change
#   apply    exit code 3 if the patch does not apply
#   restore  those files are the image's again; prints the paths of those that were changed, each ended
#            by a zero byte, behind one zero byte; exit code 4 if nothing else was changed
# In /.judge: `patch.diff`, and lists of paths and of names (see swebench_judge.py).
set -e
# Names are bytes.
export LC_ALL=C
judge=/.judge work=/tmp/.judge
patch=$judge/patch.diff
mkdir -p "$work"

# The tree as far as git knows it; what it ignores is no part of a submission.
state() {
    {
        git diff --no-ext-diff --no-textconv --no-color --binary HEAD
        git ls-files -z --others --exclude-standard | xargs -0 -r sha256sum --
    } 2>/dev/null | sha256sum
}

# What git itself would never write through a patch: with a configuration or hook of its own, a
# submission could do anything when the eval script calls git.
git_files() {
    find .git -path .git/objects -prune -o -path .git/index -prune -o -printf '%p %i %s %C@\n' | sort
}

# What is there of the paths that are not the submission's to decide: by name, unless the task's solution
# touches them, and those of the hidden tests.
protected() {
    local names=() name path
    while IFS= read -r name; do
        names+=(-o -name "$name")
    done <"$judge/protected_names"
    {
        find . -path ./.git -prune -o \( -false "${names[@]}" \) -printf '%P\0' |
            { grep -zvxFf "$judge/solution_paths" || true; }
        cat "$judge/test_paths"
    } | sort -zu | while IFS= read -r -d '' path; do
        [[ ! -e $path && ! -L $path ]] || printf './%s\0' "$path"
    done
}

# Of the files at and below the paths of standard input: how they are kept, and what they hold.
contents() {
    xargs -0 -r sh -c 'find "$@" ! -type d -printf "%p//%m %l\0" -type f -exec sha256sum -z -- {} +' find |
        sort -zu
}

# The paths that only one of two files with contents has, or has otherwise.
differing() {
    sort -z "$@" | uniq -zu | sed -z 's|^[^.]*\./||; s|//.*||' | sort -zu
}

keep() {
    protected >"$work/kept"
    tar -cf "$work/kept.tar" --null --no-unquote -T "$work/kept"
    contents <"$work/kept" >"$work/kept_contents"
    state >"$work/state"
}

apply() {
    local try
    for try in 'git apply --verbose' 'git apply --verbose --3way' 'git apply --verbose --reject' \
        'patch --batch --forward --fuzz=5 -p1 -i'; do
        # A failed try leaves partial state behind, which would make every later one fail.
        [[ $try == 'git apply --verbose' ]] || {
            git checkout -- . || true
            git clean -fd
        }
        [[ $try != patch* ]] || git_files >"$work/git_files"
        # shellcheck disable=SC2086  # words on purpose
        ! $try "$patch" || break
        # The tries can leave the patch fully applied while each of them still failed.
        [[ $try != patch* ]] || git apply --check --reverse "$patch" || exit 3
    done
    [[ $try != patch* ]] || cmp -s "$work/git_files" <(git_files) || exit 3
}

restore() {
    protected >"$work/submitted"
    contents <"$work/submitted" >"$work/submitted_contents"
    xargs -0 -r rm -rf -- <"$work/submitted"
    tar -xpf "$work/kept.tar"
    state >"$work/submitted_state"
    printf '\0'
    differing "$work/kept_contents" "$work/submitted_contents"
    ! cmp -s "$work/state" "$work/submitted_state" || exit 4
}

"$1"
