"""From the log of a test run to a verdict about a submission. Knows nothing of sessions or sandboxes."""
