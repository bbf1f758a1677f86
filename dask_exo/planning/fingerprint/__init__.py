"""Fingerprints of tasks: numbers that are equal in the next program if their values are.

`tasks` computes them: from the closure of a task's code and arguments (`closure`, with `code`,
`objects`, `bytecode` and `packages`), and of the data that they name (`stamps`).
"""

from dask_exo.planning.fingerprint.tasks import Fingerprint, NoFingerprint, fingerprints

__all__ = ["Fingerprint", "NoFingerprint", "fingerprints"]
