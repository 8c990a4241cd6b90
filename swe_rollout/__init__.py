"""The rooms of the agent server: one rollout session from leased task row to reward."""

import os

# mini-swe-agent prints a banner at import unless told otherwise.
os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
