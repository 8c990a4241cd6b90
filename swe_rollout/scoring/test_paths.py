"""Which paths of a project belong to its tests.

Hidden tests lean on helpers that stand in the tree, such as `numpy/testing`, `tornado/testing.py` or `Tests/helper.py`:
who may empty those need not mend anything.
"""

import re
from pathlib import PurePosixPath

_TEST_WORD = re.compile(r"(?<![a-z0-9])(?:py)?test|tests(?![a-z])|(?:unit|rand)test", re.IGNORECASE)


def is_test_path(path: str) -> bool:
    """Whether a folder or the file of `path` has a word in its name that begins with `test` or `pytest`, or ends with
    `tests`, `unittest` or `randtest`. One that ends with `test` may be any: `latest`.
    """
    return _TEST_WORD.search(path) is not None


def folders_of(path: str) -> list[str]:
    """The folders that `path`, a relative one, is in; `.` is the last."""
    return [str(folder) for folder in PurePosixPath(path).parents]
