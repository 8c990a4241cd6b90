"""The rooms of the agent server: one rollout session from leased task row to reward."""
