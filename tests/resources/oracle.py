"""Compares resources with TensorStore's."""

import re

import pytest
import tensorstore

from gpustore.errors import MetadataError
from gpustore.runtime.context import Context, resource_json


def compare(id, json):
    """Check that both libraries make the same of the JSON of a resource, or refuse it alike.

    Returns
    -------
    JSON or None
        The JSON without defaults; None if it is refused.
    """
    try:
        theirs = tensorstore.Context({id: json})[id]
    except ValueError as error:
        text = str(error).rstrip(")")
        if isinstance(json, list):  # In a spec, brackets mark a resource that exists.
            assert resource_json(id, [id]) == id
            text = "Expected"
        with pytest.raises(MetadataError, match=f"^{re.escape(text)}"):
            resource_json(id, json)
        return None
    ours = Context({id: json})[id]
    assert repr(ours) == repr(theirs).replace("tensorstore.", "")
    for include_defaults in (False, True):
        assert ours.to_json(include_defaults) == theirs.to_json(include_defaults)
        assert resource_json(id, json, include_defaults=include_defaults) == theirs.to_json(
            include_defaults
        )
    return ours.to_json()
