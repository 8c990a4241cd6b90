"""What SWE-bench's images have on top of the Debian root: conda's testbed environment and a repository with history.

The official Dockerfiles leave `source ... && conda activate testbed` as all of /root/.bashrc, conda's base first on
PATH, and an empty commit "SWE-bench" on top of the base commit.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from data.image import add_environment, add_venv, copy_root

_CONDA = "/opt/miniconda3"
TESTBED = f"{_CONDA}/envs/testbed"

_PROFILE = f"""\
# Of conda only what enters an environment.
conda() {{
    if [ "${{1-}}" != activate ]; then
        echo "conda: this image knows only 'conda activate'" >&2
        return 1
    fi
    case ${{2-base}} in
        base) set -- {_CONDA} base ;;
        *) set -- "{_CONDA}/envs/$2" "$2" ;;
    esac
    if [ ! -d "$1/bin" ]; then
        echo "EnvironmentNameNotFound: Could not find conda environment: $2" >&2
        return 1
    fi
    PATH="$1/bin:${{PATH#"${{CONDA_PREFIX:-/nowhere}}/bin:"}}"
    export PATH CONDA_PREFIX="$1" CONDA_DEFAULT_ENV="$2"
}}
"""

_ACTIVATE = f"""\
. {_CONDA}/etc/profile.d/conda.sh
conda activate "$@"
"""

_BASHRC = f"source {_CONDA}/etc/profile.d/conda.sh && conda activate testbed\n"


def swebench_base(debian: Path, wheels: Sequence[Path], root: Path) -> None:
    """Make what the roots of all SWE-bench form tasks share."""
    copy_root(debian, root)
    add_venv(root, TESTBED, wheels, "/testbed/src")
    conda = root / _CONDA.lstrip("/")
    (conda / "bin").mkdir()
    for name in ("python", "python3"):
        # The base environment: a Python without the project and its packages.
        (conda / "bin" / name).symlink_to("/usr/bin/python3")
    (conda / "bin/activate").write_text(_ACTIVATE, "utf-8")
    (conda / "etc/profile.d").mkdir(parents=True)
    (conda / "etc/profile.d/conda.sh").write_text(_PROFILE, "utf-8")
    bashrc = root / "root/.bashrc"
    # Debian's own is linked to that of the other roots.
    bashrc.unlink(missing_ok=True)
    bashrc.write_text(_BASHRC, "utf-8")
    add_environment(root, {"PATH": f"{_CONDA}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"})


def swebench_root(base: Path, repository: Path, root: Path, run_tests: str | None) -> None:
    """Make a task's root: base (by hard links), the repository as /testbed, and /run_tests.sh if there is one."""
    copy_root(base, root)
    shutil.copytree(repository, root / "testbed", symlinks=True)
    if run_tests is not None:
        script = root / "run_tests.sh"
        script.write_text(run_tests, "utf-8")
        script.chmod(0o755)
