"""Files that decide how tests are run, not what they find; a submission's own versions of them do not count.

pytest and Python load them by name from the tree, so that a patch of nothing else can make every test pass. They are
put back to the image's state before the hidden tests run, unless the task's own solution touches the same path.

Not covered: code under test that rewrites the test runner while it runs, or while it is installed.
"""

PROTECTED_NAMES = (
    *("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg"),
    *("pyproject.toml", "sitecustomize.py", "usercustomize.py", "*.pth"),
    # Django's and SymPy's own runners.
    "runtests.py",
)
"""Names, wherever they stand in the tree; `*` as in a shell's pattern."""
