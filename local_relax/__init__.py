"""Relax's side of an agentic rollout on one machine without a GPU: launcher, chat API, groups and scripted policies."""
