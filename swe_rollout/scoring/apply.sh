# Lays the captured change over the image's own tree. Runs in the judge's sandbox, in the task's tree.
set -e
change=/.change

# A folder that takes the place of a link or file of the image, from the top down.
find "$change/tree" -mindepth 1 -type d -printf '%P\0' |
    while IFS= read -r -d '' folder; do
        [[ -d $folder && ! -L $folder ]] || rm -rf -- "$folder"
    done
if grep -zqxF . "$change/removed"; then
    # The agent made the tree anew: only what cannot travel is left of the image's.
    find . -mindepth 1 -maxdepth 1 ! -name .git ! -name .venv ! -name run_tests.sh ! -name r2e_tests -exec rm -rf -- {} +
fi
{ grep -zvxF . "$change/removed" || true; } | xargs -0 -r rm -rf --
cp -R -P --preserve=mode,timestamps,links -- "$change/tree/." .
