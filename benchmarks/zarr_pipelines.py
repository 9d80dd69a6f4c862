"""zarr-python with its own codec pipeline, with that of zarrs and with gpustore's, side by side.

``python -m benchmarks.zarr_pipelines [--rounds N]`` prints the least time of each call, and the
others' time divided by gpustore's: above 1, gpustore is faster. The three take turns.
"""

import argparse
import tempfile
import time

import numpy as np
import zarr
from zarr.codecs import BloscCodec

import gpustore.interop.zarr  # noqa: F401  registers the pipeline
from gpustore.cli.volume import make_volume

PIPELINES = {
    "zarr-python": "zarr.core.codec_pipeline.BatchedCodecPipeline",
    "zarrs": "zarrs.ZarrsCodecPipeline",
    "gpustore": "gpustore.interop.zarr.CodecPipeline",
}

SHAPE = (128, 256, 256)

LAYOUTS = {
    "zstd 64^3": {"chunks": (64, 64, 64)},
    "zstd 16^3": {"chunks": (16, 16, 16)},
    "blosc 64^3": {"chunks": (64, 64, 64), "compressors": BloscCodec(cname="lz4")},
    "raw 64^3": {"chunks": (64, 64, 64), "compressors": None},
    "shards 128^3": {"chunks": (32, 32, 32), "shards": (128, 128, 128)},
}

CALLS = {
    "write": lambda array, volume: array.__setitem__(slice(None), volume),
    "write a part": lambda array, volume: array.__setitem__(np.s_[10:30], volume[10:30]),
    "read": lambda array, volume: array[:],
    "16 crops": lambda array, volume: [array[i : i + 16, 40:56, 90:106] for i in range(0, 112, 7)],
    "planes": lambda array, volume: array.oindex[[3, 50, 100], :, [5, 9, 200]],
}


def main() -> None:
    """Measure and print a line for each layout and call."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    volume = make_volume(SHAPE, 0, advance=lambda nbytes: None)
    with tempfile.TemporaryDirectory() as folder:
        for layout, options in LAYOUTS.items():
            arrays = {}
            for name, path in PIPELINES.items():
                with zarr.config.set({"codec_pipeline.path": path}):
                    arrays[name] = zarr.create_array(
                        f"{folder}/{layout}/{name}", shape=SHAPE, dtype=volume.dtype, **options
                    )
            for call, function in CALLS.items():
                times = {name: float("inf") for name in arrays}
                for _ in range(rounds):
                    for name, array in arrays.items():
                        begin = time.perf_counter()
                        function(array, volume)
                        times[name] = min(times[name], time.perf_counter() - begin)
                print(_line(layout, call, times), flush=True)


def _line(layout: str, call: str, times: dict[str, float]) -> str:
    ours = times["gpustore"]
    ratios = [f"{name} {times[name] / ours:5.2f}" for name in times if name != "gpustore"]
    return f"{layout:13} {call:13} gpustore {ours * 1e3:7.1f} ms   {'   '.join(ratios)}"


if __name__ == "__main__":
    main()
