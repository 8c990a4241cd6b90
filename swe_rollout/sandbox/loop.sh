# The command loop: process 1 of every sandbox. One line on stdin is one command number; the
# command itself is the file of that number in the channel folder, mounted read-only, so that its
# text is in no argument list and has no length limit. Its output goes to a FIFO of its own: what a
# background process prints later has nowhere to go instead of into the next command's output.
# Answers "<number> <exit code> <folder it ran in>" when the command's shell has ended.
#
# As process 1 no signal from inside can kill it, so a command can kill all it sees, even `kill -9 -1`.
# And as one whose program its own user cannot read, it is closed: neither its memory nor its pipes can
# be reached through /proc or ptrace (the kernel's rule for programs that may be run but not read).

readonly channel=/.channel closed=/dev/shm/.loop

if [[ $BASH != "$closed" ]]; then
    cp "$BASH" "$closed" && chmod 111 "$closed" && exec "$closed" "$channel/loop.sh" "$BASH"
fi
rm -f "$closed"
readonly shell=${1:-$BASH}

unset "${!APPTAINER_@}" "${!SINGULARITY_@}" PROMPT_COMMAND PS1 USER_PATH TERM
LD_LIBRARY_PATH=${LD_LIBRARY_PATH%/.singularity.d/libs}
LD_LIBRARY_PATH=${LD_LIBRARY_PATH%:}
[[ $LD_LIBRARY_PATH ]] || unset LD_LIBRARY_PATH
while IFS= read -r -d '' assignment; do
    # Assigned, never evaluated: a value with quotes, commas or dollars arrives byte for byte.
    export "${assignment?}"
done <"$channel/environment"
process_limit=$(<"$channel/process_limit")
cwd=$(<"$channel/cwd")
ulimit -c 0
ulimit -u "$process_limit"
export SHLVL=0

# When a process started: field 22 of /proc/PID/stat, counted after the name, which may hold anything.
started() {
    local line
    IFS= read -r -d '' line <"/proc/$1/stat"
    # shellcheck disable=SC2086  # split into fields on purpose
    set -- ${line##*)}
    start=${20:-}
    [[ $start ]]
}

# Ends the running command, `job`, with all it started, also what left its process group or session;
# background processes of earlier commands are older than its shell and live on. Should what it
# started breed faster than it can be found, all that the sandbox runs is ended at once.
end_command() {
    local born path pid older found start='' until=$((SECONDS + 2))
    started "$job" || return 0
    born=$start
    kill -KILL -- "-$job"
    while ((SECONDS <= until)); do
        older='' found=''
        for path in /proc/[0-9]*; do
            pid=${path#/proc/}
            [[ $pid == 1 ]] && continue
            [[ -e $path/exe ]] || continue # a zombie, waiting to be reaped
            started "$pid" || continue
            if ((start < born || (start == born && pid < job))); then
                older=1
            else
                kill -KILL "$pid" && found=1
            fi
            ((SECONDS <= until)) || break 2
        done
        [[ $found ]] || return 0
        [[ $older ]] || break
    done
    kill -KILL -1
}

# The sandbox's file systems in memory, for the host to ask how full they are: past a FUSE root only their user can go.
exec 8</dev 9</dev/shm
set -m # each command gets a process group of its own and default signals
trap 'expired=1' USR1
# All but this process at one moment, also what breeds faster than it can be found.
trap 'kill -KILL -1; killed=137' USR2
wait_options=()
((BASH_VERSINFO[0] >= 5)) && wait_options=(-f) # a stopped command has not ended
printf 'ready\n'
exec 2>/dev/null

while read -r number; do
    expired='' killed=''
    folder=/
    [[ -d $cwd && -x $cwd ]] && folder=$cwd
    (
        # `bash -c` is what gives the command its meaning; the text is read, not passed.
        cd "$folder" || exit
        unset OLDPWD
        exec "$shell" -c "eval \"\$(<$channel/$number)\"" bash
    ) </dev/null >"$channel/$number.out" 2>&1 8<&- 9<&- &
    job=$!
    # A signal between these lines is lost on `wait`; the host sends it again until there is an answer.
    while wait "${wait_options[@]}" "$job"; code=$?; kill -0 "$job"; do
        [[ $expired ]] && end_command
    done
    printf '%s %s %s\n' "$number" "${killed:-$code}" "$folder"
done
