"""zarr-python: its arrays read and written by gpustore, and its stores as kvstores.

``zarr.config.set({"codec_pipeline.path": "gpustore.interop.zarr.CodecPipeline"})`` lets zarr-python
use :class:`CodecPipeline` for arrays that are opened afterwards, and with it xarray, dask, anndata
and all that go through zarr-python.
"""

from gpustore.interop import extra

with extra("zarr"):
    from zarr.registry import register_pipeline

from gpustore.interop.zarr.pipeline import CodecPipeline as CodecPipeline
from gpustore.interop.zarr.store import StoreCalls as StoreCalls

CodecPipeline.__module__ = __name__  # zarr-python finds it by its whole name.
register_pipeline(CodecPipeline)
