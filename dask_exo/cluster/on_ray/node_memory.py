"""How full the memory of this machine is, or of the container that this process is in."""

from __future__ import annotations

from pathlib import Path

import psutil

_GROUP = Path("/sys/fs/cgroup")  # of a container, as it sees itself


def used_share(group: Path = _GROUP) -> float:
    """Used share of memory: of the container where that has a limit, and of the machine."""
    machine = psutil.virtual_memory()
    shares = [1 - machine.available / machine.total]
    limit, used = _number(group / "memory.max"), _number(group / "memory.current")
    if limit and used is not None:
        # pages of files that can be dropped at any time count as used there
        shares.append(max(0, used - _inactive(group / "memory.stat")) / limit)
    return max(shares)


def _number(file: Path) -> int | None:
    """What a file says; None where there is none, or no limit."""
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _inactive(file: Path) -> int:
    try:
        lines = file.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    found = dict(line.split(maxsplit=1) for line in lines)
    return int(found.get("inactive_file", 0))
