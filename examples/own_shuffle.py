"""A shuffle algorithm of one's own: blocks of a node are merged in pairs, in a tree.

Dask's code uses it like those that are there. python examples/own_shuffle.py
"""

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd

import dask_exo
from dask_exo import shuffle
from dask_exo.report import recording
from dask_exo.shuffle.spec import ReducerInput


@shuffle.register
def tree(futures, maps, spec):
    """Each reducer reads one block, which took log2(M) merges."""
    rows = yield from maps.take(len(maps))  # (M, W) packed blocks
    inputs = []
    for w, group in enumerate(spec.owned):  # the reducers of node w
        blocks = [row[w] for row in rows]
        while group and len(blocks) > 1:
            merged = [
                futures.stream(1, spec.merge, [group], *pair, node=spec.nodes[w].id)[0]
                for pair in zip(blocks[::2], blocks[1::2], strict=False)
            ]
            blocks = merged + blocks[2 * len(merged) :]
            yield merged
        inputs += [ReducerInput(blocks, r) for r in group]
    yield from maps.finish()
    return inputs


def main(rows: int = 200_000) -> str:
    """Name of the algorithm that has run."""
    source = pd.DataFrame({"k": np.arange(rows) % 1009, "v": np.arange(rows)})
    ddf = dd.from_pandas(source, npartitions=12)
    settings = {"exo.shuffle.algorithm": "tree"}
    ray = dask_exo.enable(num_cpus=2, object_store_memory="300MB")
    with ray, dask.config.set(settings), recording() as stats:
        found = ddf.set_index("k", divisions=[0, 250, 500, 750, 1008]).compute()
    assert found.v.sum() == source.v.sum()
    (one,) = stats.shuffles
    print(f"{one.algorithm}: {one.maps} maps, {one.reducers} reducers, {stats.objects} objects")
    return one.algorithm


if __name__ == "__main__":
    main()
