"""Loaders: patches of arrays for training, planned so that chunks are decoded about once an epoch.

>>> import gpustore
>>> from gpustore.loader import PatchLoader, RandomPatches
>>> store = gpustore.array([[0, 1, 2], [3, 4, 5], [6, 7, 8]])
>>> loader = PatchLoader(store, sampler=RandomPatches((2, 2), per_epoch=8), batch_size=4)
>>> [batch["image"].shape for batch in loader]
[(4, 2, 2), (4, 2, 2)]
"""

from gpustore.loader.explanation import LoaderExplanation
from gpustore.loader.grid_patches import GridPatches
from gpustore.loader.patch_loader import PatchLoader
from gpustore.loader.random_patches import RandomPatches
from gpustore.loader.stitching import stitch

__all__ = ["GridPatches", "LoaderExplanation", "PatchLoader", "RandomPatches", "stitch"]
