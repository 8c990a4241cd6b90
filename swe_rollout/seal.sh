# Run in the agent's sandbox before the agent, in the task's tree. Removes the paths given as arguments, and from the
# repository and its submodules all that HEAD and the index do not need: images hold the project's whole history, with
# the fix in it, and whoever knows or finds its hash could read it. HEAD, branch, index and files stay as they are;
# the base commit is tagged.
set -e
export GIT_NO_REPLACE_OBJECTS=1
rm -rf -- "$@"

# Whether the repository holds objects that HEAD and the index do not need; if in doubt, it does. Mostly the refs tell
# at once. Else all are counted, for some may hang on no ref: one too many, and there is such a one.
holds_more() {
    local key value held=0 needed
    [[ -z $(git rev-list --objects --all --reflog --not HEAD 2>/dev/null | head -c 1) ]] || return 0
    while IFS=': ' read -r key value; do
        case $key in
        count | in-pack | garbage) held=$((held + value)) ;;
        alternate) return 0 ;;
        esac
    done < <(git count-objects -v 2>/dev/null)
    needed=$(git rev-list --objects --indexed-objects HEAD | wc -l)
    ((held != needed))
}

# Removes from the folder $1 all but the names that follow.
keep_only() {
    local folder=$1 tests=() name
    shift
    [[ -d $folder ]] || return 0
    for name; do
        tests+=(! -name "$name")
    done
    find "$folder" -mindepth 1 -maxdepth 1 "${tests[@]}" -exec rm -rf {} +
}

seal() {
    local -x GIT_DIR=$1 GIT_WORK_TREE=/ # a submodule's own folder may not be there
    local base branch more='' pack
    local packs=$GIT_DIR/objects/pack alternates=()
    base=$(git rev-parse --quiet --verify 'HEAD^{commit}') || base=''
    branch=$(git symbolic-ref -q HEAD || true)
    while IFS= read -r -d '' pack; do
        more=1
        rm "$pack"
    done < <(find "$packs" -name '*.keep' -print0)
    [[ $more ]] || ! holds_more || more=1
    mapfile -t alternates < <(git count-objects -v | sed -n 's/^alternate: //p')

    for remote in $(git remote); do git remote remove "$remote"; done
    keep_only "$GIT_DIR" HEAD config config.worktree description hooks index 'sharedindex.*' info modules objects shallow
    keep_only "$GIT_DIR/info" attributes exclude sparse-checkout
    mkdir -p "$GIT_DIR/refs/heads" "$GIT_DIR/refs/tags"
    [[ ! $base || ! $branch ]] || git -c core.logAllRefUpdates=false update-ref "$branch" "$base"
    if [[ $(git rev-parse --quiet --verify 'HEAD^{commit}' || true) != "$base" ]]; then
        echo "$GIT_DIR keeps its refs in a form that cannot be sealed" >&2
        exit 1
    fi

    rm -rf "$GIT_DIR"/objects/info/commit-graph* "$packs"/multi-pack-index*
    [[ $more ]] || return 0
    # What was packed before is copied as it is, without a search for smaller deltas.
    git -c repack.writeBitmaps=false repack -a -d -q --window=0
    keep_only "$GIT_DIR/objects" pack
    for pack in "$packs"/*; do
        [[ $pack == *.idx || -f ${pack%.*}.idx ]] || rm -f "$pack"
    done
    [[ ${#alternates[@]} == 0 ]] || rm -rf -- "${alternates[@]}"
}

folder=$(git rev-parse --absolute-git-dir)
if [[ $(cd "$(git rev-parse --git-common-dir)" && pwd -P) != "$(cd "$folder" && pwd -P)" ]]; then
    echo "the tree is a linked worktree of another repository, whose history cannot be taken from it" >&2
    exit 1
fi
seal "$folder"
if [[ -d $folder/modules ]]; then
    while IFS= read -r -d '' head; do
        if [[ -d ${head%/HEAD}/objects ]]; then
            seal "${head%/HEAD}"
        fi
    done < <(find "$folder/modules" -name HEAD -type f -print0)
fi
git tag base HEAD
