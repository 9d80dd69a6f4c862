"""Tests of the names for annotations."""

import typing

import tensorstore

import gpustore


def test_the_same_classes_are_indexable():
    names = ("TensorStore", "Spec", "IndexTransform", "IndexDomain", "Schema", "KvStore")
    for name in names:
        found = issubclass(getattr(gpustore, name), gpustore.Indexable)
        assert found == issubclass(getattr(tensorstore, name), tensorstore.Indexable), name
    assert isinstance(gpustore.array([1]), gpustore.Indexable)


def test_annotations_name_the_same_types():
    for name in ("DownsampleMethod", "RecheckCacheOption"):
        ours, theirs = getattr(gpustore, name), getattr(tensorstore, name)
        assert set(typing.get_args(ours)) == set(typing.get_args(theirs))
    assert gpustore.Future[int] in typing.get_args(gpustore.FutureLike[int])
    assert gpustore.dtype in typing.get_args(gpustore.DTypeLike)
    assert set(typing.get_args(gpustore.NumpyIndexTerm)) < set(
        typing.get_args(gpustore.NumpyIndexingSpec)
    )
