"""What scoring says about one submission."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Status = Literal[
    "graded",  # test by test
    "no_change",  # nothing was submitted, or nothing that may decide a test
    "patch_refused",  # no patch, or one that does not apply
    "timed_out",  # the hidden tests did not end in time
    "not_believed",  # what the test run tells of itself does not fit together: something changed it
    "no_results",  # the log of the hidden tests cannot be believed or holds no results
    "parser_error",  # the harness' parser failed on the log or did not end
]
"""How a verdict came about."""


@dataclass(frozen=True)
class Verdict:
    """A judged submission. What could not be judged is an exception, never a verdict.

    Build it with `one` or `zero`; any other reward raises `ValueError`.
    """

    reward: float
    """1.0 if every expected test has its expected status, else 0.0."""
    reason: str
    """Why, in one line for people; names the first tests that differ."""
    tests: Mapping[str, str] = field(default_factory=dict)
    """Status of every test the log reports, by test key; empty if the log reports none."""
    n_expected: int = 0
    """Tests the task expects a status of."""
    n_as_expected: int = 0
    """Those of them that have it."""
    status: Status = "graded"

    def __post_init__(self) -> None:
        if self.reward not in (0.0, 1.0):
            raise ValueError(f"a reward is 0.0 or 1.0, not {self.reward!r}")

    @classmethod
    def one(cls, reason: str, *, tests: Mapping[str, str], n_expected: int) -> "Verdict":
        """All `n_expected` tests are as expected."""
        return cls(1.0, reason, tests, n_expected, n_expected)

    @classmethod
    def zero(
        cls,
        reason: str,
        *,
        tests: Mapping[str, str] | None = None,
        n_expected: int = 0,
        n_as_expected: int = 0,
        status: Status = "graded",
    ) -> "Verdict":
        """The submission does not solve the task, or its test run cannot be believed."""
        return cls(0.0, reason, tests or {}, n_expected, n_as_expected, status)
