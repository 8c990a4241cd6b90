# The tree's state as a git tree object, by the image's untouched git: with an index and an object
# store of its own, without filters, hooks or line-end conversion, ignored files left out.
# Called with `base` before the change is laid over the tree: remembers the state.
# Called with `patch` afterwards: prints the difference to it.
set -e
work=/tmp/.judge
export GIT_DIR=$PWD/.git GIT_WORK_TREE=$PWD GIT_INDEX_FILE=$work/index
export GIT_OBJECT_DIRECTORY=$work/objects GIT_ALTERNATE_OBJECT_DIRECTORIES=$PWD/.git/objects
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null

plain_git() {
    git -c core.autocrlf=false -c core.safecrlf=false -c core.fsmonitor=false -c core.hooksPath=/dev/null \
        -c core.untrackedCache=false -c core.fileMode=true -c core.protectNTFS=false -c core.protectHFS=false "$@"
}

if [[ $1 == base ]]; then
    mkdir -p "$work/objects" .git/info
    echo '* -text -eol -filter -ident -working-tree-encoding !diff' >>.git/info/attributes
    [[ ! -f .git/index ]] || cp .git/index "$work/index"
fi
# Warnings would stand in the patch.
plain_git add -A -- . 2>"$work/complaints" || { cat "$work/complaints"; exit 1; }
plain_git rm -r -q --cached --ignore-unmatch -- r2e_tests run_tests.sh
# The file that an agent is told to write its patch to is no part of what it changed.
[[ $1 == base ]] || plain_git cat-file -e "$(<"$work/base"):patch.txt" 2>/dev/null ||
    plain_git rm -q --cached --ignore-unmatch -- patch.txt
state=$(plain_git write-tree)
if [[ $1 == base ]]; then
    printf %s "$state" >"$work/base"
else
    plain_git diff-tree -r -p --binary --full-index --no-renames --no-ext-diff --no-textconv \
        "$(<"$work/base")" "$state"
fi
