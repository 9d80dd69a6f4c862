"""Runs one program of index algebra in gpustore and in TensorStore and compares the outcomes.

A program is plain data: how to make the first object, then operations on it. TensorStore runs in
a process of its own, since some legal programs make it crash (index arrays over empty implicit
dimensions); those are skipped.
"""

from __future__ import annotations

import re

from gpustore.errors import GpustoreError


def run(lib, program):
    """The object that the program makes of `lib`, a module."""
    (maker, argument), *operations = program
    make = {
        "dim": lambda: lib.Dim(**argument),
        "domain": lambda: lib.IndexDomain(**argument),
        "expression": lambda: expression(lib, *argument),
        "equal": lambda: expression(lib, *argument[0]) == expression(lib, *argument[1]),
        "domain_json": lambda: lib.IndexDomain(json=argument),
        "identity": lambda: lib.IndexTransform(lib.IndexDomain(**argument)),
        "json": lambda: lib.IndexTransform(json=argument),
    }
    value = make[maker]()
    apply = {
        "index": lambda x: value[x],
        "compose": lambda x: value[lib.IndexTransform(json=x)],
        "crop": lambda x: value[lib.IndexDomain(**x)],
        "expression": lambda x: value[expression(lib, *x)],
        "call": lambda x: value(x),
        "transpose": lambda x: value.transpose(x),
        "hull": lambda x: value.hull(type(value)(**x)),
        "intersect": lambda x: value.intersect(type(value)(**x)),
    }
    for name, argument in operations:
        value = apply[name](argument) if name in apply else getattr(value, name)[argument]
    return value


def expression(lib, selection, operations):
    """The dimension expression of a selection and ``(name, index)`` of the operations on it."""
    value = lib.d[selection]
    for name, index in operations:
        if name == "diagonal":
            value = value.diagonal
        else:
            value = value[index] if name == "index" else getattr(value, name)[index]
    return value


def kind(error):
    """What both libraries agree on: out of bounds, or the builtin class."""
    if str(error).startswith("OUT_OF_RANGE"):
        return "OUT_OF_RANGE"
    return next(c.__name__ for c in (IndexError, TypeError, ValueError) if isinstance(error, c))


def outcome(lib, program):
    """JSON and print of the result, or kind and text of the error without bracketed payload."""
    try:
        result = run(lib, program)
    except (GpustoreError, ValueError, IndexError, TypeError) as error:
        # The text of a TypeError lists pybind11's overloads.
        text = "" if isinstance(error, TypeError) else str(error)
        return kind(error), re.sub(r" \[\w+='.*", "", text, flags=re.DOTALL)
    if hasattr(result, "to_json"):
        return result.to_json(), repr(result)
    return result if isinstance(result, tuple) else repr(result), str(result)
