"""Files that decide how tests are run, not what they find; a submission's own versions of them do not count.

pytest and Python load them by name from the tree, so that a patch of nothing else can make every test pass. They are
the image's own when the hidden tests run; in SWE-bench form, unless the task's own solution touches the same path.

Not covered: code under test that rewrites the test runner while it runs, or while it is installed.
"""

PROTECTED_NAMES = (
    # Python prefers a folder or a compiled module to the file of the same name.
    *("conftest", "conftest.*", "sitecustomize", "sitecustomize.*", "usercustomize", "usercustomize.*", "*.pth"),
    *("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml"),
    ".coveragerc",
    # Their entry points name plugins that pytest loads.
    *("*.egg-info", "*.dist-info", "*.egg-link"),
    # Django's and SymPy's own runners.
    "runtests.py",
)
"""Names of files and folders, wherever they stand in the tree; `*` as in a shell's pattern."""
