"""Checkpoints of the outputs of tasks and shuffles."""
