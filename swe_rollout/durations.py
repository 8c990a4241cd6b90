"""Spans of time, for people."""


def rough(seconds: float) -> str:
    """As precise as a forecast deserves: seconds, then minutes, then hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
