"""What tasks will give, as numbers that are the same in the next program.

`tasks` puts them together: of the closure of a task's code and arguments (`closure`, with `code`,
`objects`, `bytecode` and `packages`), and of the data that they name (`stamps`).
"""

from dask_exo.planning.fingerprint.tasks import Fingerprint, NoFingerprint, fingerprints

__all__ = ["Fingerprint", "NoFingerprint", "fingerprints"]
