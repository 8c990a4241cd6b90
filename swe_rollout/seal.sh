# Run in the agent's sandbox before the agent: removes the paths given as arguments and every way that
# the repository's names lead to commits other than the task's own past. The base commit is tagged.
set -e
rm -rf -- "$@"
base=$(git rev-parse --verify HEAD)
branch=$(git symbolic-ref -q HEAD || true)
git for-each-ref --format='delete %(refname)' | grep -vxF "delete $branch" | git update-ref --no-deref --stdin
for remote in $(git remote); do git remote remove "$remote"; done
folder=$(git rev-parse --git-dir)
rm -rf "$folder/logs" "$folder/refs/stash" "$folder/ORIG_HEAD" "$folder/FETCH_HEAD" "$folder/MERGE_HEAD" \
    "$folder/CHERRY_PICK_HEAD" "$folder/REVERT_HEAD"
git tag base "$base"
