"""Batches for training, from an Exoshuffle for each epoch.

The order of an epoch is decided by the seed and its number, so that a training run can stop
anywhere and go on exactly there.

References: Exoshuffle section 3.3.3.2: pipelined full shuffle and windowed shuffle.
"""

from dask_exo.epochs.iterator import Epochs, epochs
from dask_exo.epochs.quality import spread
from dask_exo.epochs.shuffles import How

__all__ = ["Epochs", "How", "epochs", "spread"]
