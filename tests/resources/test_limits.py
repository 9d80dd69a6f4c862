"""Tests of the context resource ``limits``."""

import pickle

import pytest

from gpustore.errors import MetadataError
from gpustore.runtime.context import Context
from gpustore.runtime.limits import DEFAULT_LIMITS, Limits


def test_given_members_stay_even_where_they_are_the_default():
    json = {"rank": DEFAULT_LIMITS.rank, "codecs": 3}
    resource = Context({"limits": json})["limits"]
    assert resource.to_json() == json
    assert resource.to_json(include_defaults=True) == resource.value.to_json()
    assert resource.value == Limits.from_json({"codecs": 3}, base=DEFAULT_LIMITS)
    assert pickle.loads(pickle.dumps(resource)).to_json() == json


@pytest.mark.parametrize(
    ("json", "text"),
    [
        ({"rank": 40}, 'Error parsing object member "rank": Expected integer in the range [1, 32]'),
        ({"foo": 1}, 'Object includes extra members: "foo"'),
        (5, "Expected object, but received: 5"),
    ],
)
def test_bad_json(json, text):
    with pytest.raises(MetadataError) as raised:
        Context({"limits": json})
    assert str(raised.value).startswith(text)
    assert str(raised.value).endswith('(in context resource "limits")')
