"""Specs of kvstores beside TensorStore's: the same JSON, and the same words about wrong ones."""

import pickle

import pytest
import tensorstore

from gpustore.errors import MetadataError
from gpustore.kvstores.kvstore import KvStore


def check_spec(spec, *own):
    """A spec is what TensorStore makes of it, but for context resources of our own.

    Returns both specs.
    """
    ours, theirs = KvStore.Spec(spec), tensorstore.KvStore.Spec(spec)
    assert ours.to_json() == theirs.to_json()
    everything = ours.to_json(include_defaults=True)
    for name in own:
        assert everything.pop(name) == name
    assert everything == theirs.to_json(include_defaults=True)
    assert KvStore.Spec(ours.to_json()) == ours == pickle.loads(pickle.dumps(ours))
    return ours, theirs


def check_wrong_spec(spec, errors=MetadataError):
    """A wrong spec raises one of `errors`, in TensorStore's words."""
    with pytest.raises(ValueError) as theirs:  # noqa: PT011  the text is what is compared
        tensorstore.KvStore.Spec(spec)
    with pytest.raises(errors) as ours:
        KvStore.Spec(spec)
    assert str(ours.value).startswith(str(theirs.value))
