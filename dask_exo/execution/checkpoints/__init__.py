"""Outputs of tasks and shuffles that are kept for the next program."""
