"""Opening of arrays for commands that show or copy all of them.

A record can be read only by naming one of its fields. Commands need whole records: they open them
as bytes, which adds an inner dimension.
"""

from __future__ import annotations

from typing import Any

import gpustore

_NO_ANSWER = ("ABORTED", "DEADLINE_EXCEEDED")
"""Statuses of errors after all retries or all the time: to look for a group would take as long."""


def open_whole(
    name: str | dict[str, Any], *, field: str | None = None, **keywords: Any
) -> gpustore.TensorStore:
    """Open an array; records are opened as bytes unless `field` names one of their fields.

    Parameters
    ----------
    name : str or dict
        URL, path or JSON.
    field : str, optional
    **keywords
        Arguments of :func:`gpustore.open`.

    Raises
    ------
    CopyError
        `field` is given and the array is not a Zarr array.
    GpustoreError
        The errors of :func:`gpustore.open`.
    """
    spec: dict[str, Any] = gpustore.Spec(name).to_json()
    try:
        store = gpustore.open(name, **keywords).result()
    except gpustore.MismatchError as error:
        if 'Must specify a "field"' not in str(error):
            raise
        drivers = ["zarr2", "zarr3"] if spec["driver"] == "auto" else [spec["driver"]]
    else:
        opened = store.spec().to_json()
        if field is None and "field" not in opened:  # The only field of records.
            return store
        drivers = [str(opened["driver"])]
        if drivers[0] not in ("zarr", "zarr2", "zarr3"):
            raise gpustore.CopyError(f"{name} is {drivers[0]}: only Zarr arrays have fields")
    component = {"open_as_void": True} if field is None else {"field": field}
    while True:
        try:
            return gpustore.open(
                {**spec, "driver": drivers.pop(0), **component}, **keywords
            ).result()
        except gpustore.NotFoundError:
            if not drivers:
                raise


def find_group(
    place: Any, failure: gpustore.GpustoreError, *, context: gpustore.Context | None = None
) -> gpustore.Group:
    """Open the group at a URL or path at which opening an array failed.

    Parameters
    ----------
    place : str, dict or Spec
    failure : GpustoreError
        Error of opening an array.
    context : Context, optional

    Raises
    ------
    GpustoreError
        `failure`; or, if `failure` reports a group, the error of opening the group.
    """
    if isinstance(failure, gpustore.StoreIOError) and failure.status in _NO_ANSWER:
        raise failure
    try:
        return gpustore.open_group(place, context=context).result()
    except gpustore.GpustoreError as error:
        raise (error if "gpustore.open_group" in str(failure) else failure) from None
