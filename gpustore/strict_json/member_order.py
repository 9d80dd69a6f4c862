"""Members of JSON objects in the order of their names, as TensorStore prints them."""

from __future__ import annotations

from gpustore.strict_json.parsing import JsonValue

_PLAIN_TYPES = frozenset({bool, int, float, str, type(None)})


def ordered(value: JsonValue) -> JsonValue:
    """Return a copy with the members of all objects in the order of their names.

    >>> ordered({"b": [{"d": 1, "c": 2}], "a": None})
    {'a': None, 'b': [{'c': 2, 'd': 1}]}
    """
    if type(value) is dict:
        return {name: ordered(value[name]) for name in sorted(value)}
    if type(value) is list:
        return [item if type(item) in _PLAIN_TYPES else ordered(item) for item in value]
    return value
