"""What all tests share."""

import os

# Before anything imports Ray or starts it.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import hypothesis

hypothesis.settings.register_profile("dev", max_examples=50, deadline=None)
hypothesis.settings.register_profile(
    "ci", max_examples=200, deadline=None, derandomize=True, print_blob=True
)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")

# --- Ray: the session-scoped fixture `ray_cluster` goes here. ---
