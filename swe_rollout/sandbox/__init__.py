"""Apptainer sandboxes: one child process each, commands over a pipe. Knows nothing of sessions or HTTP."""
