"""Running the command line inside the test's process."""

import numpy as np
import pytest

import gpustore
from gpustore.cli.main import main


@pytest.fixture
def gpustore_command(capsys):
    """Call with arguments; gives exit code, standard output and standard error."""

    def call(*arguments):
        capsys.readouterr()
        try:
            code = main([str(a) for a in arguments])
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def image(tmp_path):
    """Path of an image in OME-Zarr 0.5 with two levels, and the elements of the first."""
    path = tmp_path / "image.zarr"
    axes = [{"name": "z", "type": "space"}]
    axes += [{"name": name, "type": "space", "unit": "micrometer"} for name in "yx"]
    scales = [[1, 0.5 * 2**level, 0.25 * 2**level] for level in range(2)]
    levels = [
        {"path": str(level), "coordinateTransformations": [{"type": "scale", "scale": scale}]}
        for level, scale in enumerate(scales)
    ]
    ome = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": levels}]}
    group = gpustore.open_group(path, create=True, attributes={"ome": ome}).result()
    elements = np.arange(3 * 40 * 60, dtype="uint16").reshape(3, 40, 60)
    for level in range(2):
        data = elements[:, :: 2**level, :: 2**level]
        group.create_array(str(level), data=data, chunks=(1, 20, 20), dims=list("zyx")).result()
    return path, elements
