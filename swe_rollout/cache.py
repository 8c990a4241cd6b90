"""Where what is made once per machine is kept: samples, tools, and session folders unless told otherwise."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """$SWE_ROLLOUT_CACHE; else /var/cache/swe-rollout for root, because the user that sandboxes run as cannot look
    into root's home and must read images; else ~/.cache/swe-rollout.
    """
    default = "/var/cache/swe-rollout" if os.geteuid() == 0 else "~/.cache/swe-rollout"
    return Path(os.environ.get("SWE_ROLLOUT_CACHE") or default).expanduser().absolute()
