"""OME-Zarr: images, plates and labels by the names and physical sizes that microscopes gave them.

>>> from gpustore import ome
>>> ome.um(10, 40)
Range(start=10, stop=40, unit=Unit('micrometer'))
"""

from gpustore.ome.channels import Channel, Omero, Window
from gpustore.ome.collection import Collection
from gpustore.ome.create import create, create_plate, write
from gpustore.ome.image import Image
from gpustore.ome.level import Level
from gpustore.ome.multiscale import Axis, Transformation
from gpustore.ome.open import open
from gpustore.ome.plate import Acquisition, Plate, Well
from gpustore.ome.rules import Problem
from gpustore.ome.tiles import Tile
from gpustore.ome.units import Range, Unit, minute, mm, ms, nm, s, um
from gpustore.ome.validate import validate

__all__ = [
    "Acquisition",
    "Axis",
    "Channel",
    "Collection",
    "Image",
    "Level",
    "Omero",
    "Plate",
    "Problem",
    "Range",
    "Tile",
    "Transformation",
    "Unit",
    "Well",
    "Window",
    "create",
    "create_plate",
    "minute",
    "mm",
    "ms",
    "nm",
    "open",
    "s",
    "um",
    "validate",
    "write",
]
