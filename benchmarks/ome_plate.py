"""Time in which all that the metadata of a plate say is known: names, shapes and scales of levels.

    python -m benchmarks.ome_plate [FIELDS] [FOLDER]

gpustore, ngff-zarr and ome-zarr in turn, each round in processes of its own, whose imports are not
counted: open the plate, every well and every field, and ask each field for its name and for shape,
scale and translation of its three levels. The files are OME-Zarr 0.5 on a local disk, in the page
cache. Medians of wall and CPU time in seconds, and their ratios to gpustore's. What the libraries
found is compared.
"""

import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROUNDS = 3
COLUMNS = 12
FIELDS = 8
LEVELS = 3


def make(path, fields):
    """A plate of wells with eight fields each, alike in a well; fields have no elements."""
    import gpustore
    from gpustore import ome

    context = gpustore.Context({"file_io_sync": False})
    wells = math.ceil(fields / FIELDS)
    rows = [f"R{number}" for number in range(math.ceil(wells / COLUMNS))]
    columns = [str(number + 1) for number in range(COLUMNS)]
    plate = ome.create_plate(path, rows=rows, columns=columns, context=context)
    for well in range(wells):
        place = f"{rows[well // COLUMNS]}/{columns[well % COLUMNS]}"
        plate.create_images(
            [f"{place}/{field}" for field in range(min(FIELDS, fields - well * FIELDS))],
            **{"shape": (2, 10, 1000, 1000), "dtype": "uint16", "axes": "czyx", "levels": LEVELS},
            **{"scale": (1, 2, 0.65, 0.65), "translation": (0, 0, well, 0), "units": "um"},
            **{"channels": ("DAPI", "GFP"), "name": f"well {well}"},
        )


def with_gpustore(path):
    from gpustore import ome

    def known():
        found = {}
        for name, image in ome.open(path).fields.items():
            found[name] = (
                image.name,
                [
                    (level.shape, [*level.scale.values()], [*level.translation.values()])
                    for level in image.levels
                ],
            )
        return found

    return known


def with_ngff_zarr(path):
    import ngff_zarr

    def known():
        plate = ngff_zarr.from_hcs_zarr(path)
        found = {}
        for one in plate.metadata.wells:
            row, column = one.path.split("/")
            well = plate.get_well(row, column)
            for number in range(len(well.images)):
                image = well.get_image(number)
                found[f"{one.path}/{number}"] = (
                    image.metadata.name,
                    [
                        (level.data.shape, [*level.scale.values()], [*level.translation.values()])
                        for level in image.images
                    ],
                )
        return found

    return known


def with_ome_zarr(path):
    from ome_zarr.io import parse_url
    from ome_zarr.reader import Multiscales, Reader

    def known():
        # Its node of a plate joins the fields to one array; this asks for every field's own.
        root = parse_url(path)
        found = {}
        for one in root.root_attrs["plate"]["wells"]:
            well = parse_url(f"{path}/{one['path']}")
            for number, field in enumerate(well.root_attrs["well"]["images"]):
                location = parse_url(f"{path}/{one['path']}/{field['path']}")
                node = next(iter(Reader(location)()))
                image = node.load(Multiscales)
                steps = node.metadata["coordinateTransformations"]
                found[f"{one['path']}/{number}"] = (
                    node.metadata["name"],
                    [
                        (array.shape, step[0]["scale"], _translation(step))
                        for array, step in zip(image.node.data, steps, strict=True)
                    ],
                )
        return found

    return known


def _translation(step):
    return step[1]["translation"] if len(step) > 1 else [0.0] * len(step[0]["scale"])


LIBRARIES = {"gpustore": with_gpustore, "ngff-zarr": with_ngff_zarr, "ome-zarr": with_ome_zarr}


def ask(name, path):
    asking = LIBRARIES[name](path)
    wall, cpu = time.perf_counter(), time.process_time()
    found = asking()
    times = time.perf_counter() - wall, time.process_time() - cpu
    print(json.dumps([*times, found]))


def main(fields, folder):
    path = str(Path(folder) / "plate.zarr")
    make(path, fields)
    times = {name: [] for name in LIBRARIES}
    for _ in range(ROUNDS):
        expected = None
        for name, measured in times.items():
            command = [sys.executable, "-m", "benchmarks.ome_plate", "ask", name, path]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            *seconds, found = json.loads(done.stdout.splitlines()[-1])
            measured.append(seconds)
            assert len(found) == fields
            expected = expected or found
            assert found == expected, name
    ours = np.median(times["gpustore"], axis=0)
    for name, measured in times.items():
        wall, cpu = np.median(measured, axis=0)
        ratios = f"{wall / ours[0]:6.2f} {cpu / ours[1]:6.2f}"
        print(f"{name:10} {wall:7.3f} wall {cpu:7.3f} CPU {ratios}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["ask"]:
        ask(*sys.argv[2:])
    else:
        count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
        with tempfile.TemporaryDirectory() as temporary:
            main(count, sys.argv[2] if len(sys.argv) > 2 else temporary)
