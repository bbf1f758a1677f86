"""Whether this process has the token that a Ray cluster may ask for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal


def token() -> Literal["off", "used", "missing"]:
    """Whether Ray is told to send a token, and there is one to send; it is not looked at."""
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        return "off"
    if os.environ.get("RAY_AUTH_TOKEN"):
        return "used"
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    return "used" if path.is_file() else "missing"
