"""All findings, as people read them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dask_exo.cli.doctor.checks import OF_ALL, OF_EACH
from dask_exo.cli.doctor.facts import Facts, Finding

MARKS = {"ok": "  ok", "warn": "WARN", "fail": "FAIL"}


@dataclass(frozen=True)
class Diagnosis:
    """All findings; the text has a line for each, and one more for each remedy.

    Attributes
    ----------
    program : tuple of Finding
        Of this process and the cluster as a whole.
    machines : tuple of (str, tuple of Finding)
        Of each machine, by name.
    """

    program: tuple[Finding, ...]
    machines: tuple[tuple[str, tuple[Finding, ...]], ...]

    @property
    def findings(self) -> list[Finding]:
        """All of them."""
        return [*self.program, *(one for _, found in self.machines for one in found)]

    @property
    def failed(self) -> bool:
        """True if a check failed."""
        return any(one.level == "fail" for one in self.findings)

    def __str__(self) -> str:
        """Lines for people."""
        lines = list(_lines(self.program))
        for name, found in self.machines:
            lines += ["", name, *_lines(found)]
        count = {mark: sum(one.level == mark for one in self.findings) for mark in MARKS}
        lines += ["", f"{count['ok']} ok, {count['warn']} to look at, {count['fail']} failed"]
        return "\n".join(lines)

    __repr__ = __str__


def diagnose(facts: Facts) -> Diagnosis:
    """Check facts.

    Examples
    --------
    >>> from dask_exo.cli.doctor import Machine, ProgramFacts
    >>> sizes = {"memory": 8 * 2**30, "store": 2**30, "shared": 2**26}
    >>> machine = Machine("n1", {}, **sizes, allocator={"MALLOC_TRIM_THRESHOLD_": "1000000000"})
    >>> found = diagnose(Facts(ProgramFacts({}, {}), (machine,)))
    >>> [one.name for one in found.findings if one.level != "ok"]
    ['/dev/shm']
    """
    program = tuple(one for check in OF_ALL for one in check(facts))
    machines = [(m.name, tuple(check(m) for check in OF_EACH)) for m in facts.machines]
    return Diagnosis(program, tuple(machines))


def _lines(found: tuple[Finding, ...]) -> Iterator[str]:
    for one in found:
        yield f"{MARKS[one.level]}  {one.name:<13} {one.what}"
        if one.remedy:
            yield f"{'':<20}→ {one.remedy}"
