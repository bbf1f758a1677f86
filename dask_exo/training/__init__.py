"""Batches for training, from an Exoshuffle for each epoch.

The seed and the epoch's number decide the order, so a training run can resume at any batch.

References: Exoshuffle section 3.3.3.2: pipelined full shuffle and windowed shuffle.
"""

from dask_exo.training.epoch_shuffle import EpochSpec, spread
from dask_exo.training.iterator import Epochs, epochs

__all__ = ["EpochSpec", "Epochs", "epochs", "spread"]
