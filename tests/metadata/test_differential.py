"""Generated documents: what we accept tensorstore opens, with the same values, and vice versa.

Documents start out right and are then changed in a few places, so that both answers are common.
:func:`deliberate` lists where we differ on purpose; ``cases/`` has one case of each.
"""

import copy
import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpustore.errors import GpustoreError
from gpustore.metadata.data_type import V3_DATA_TYPES
from gpustore.metadata.zarr2 import Zarr2Metadata
from gpustore.metadata.zarr3 import Zarr3Metadata

FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

INTS = st.integers(0, 9)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**64), 2**65),
    INTS,
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["NaN", "Infinity", "-Infinity", "0x7fc00001", "0x7e", "1.5", "", "x", "/"]),
    NAMES,
)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3)
)


def fill_values(name):
    """Values that a type of this name mostly has."""
    if name == "bool":
        return st.booleans()
    if name == "int2":
        return st.integers(-2, 1)
    if "int" in name or re.fullmatch("[<>|][iu].", name):
        return st.integers(0 if "u" in name else -7, 7)
    part = st.one_of(
        st.floats(-8, 8), st.integers(-8, 8), st.sampled_from(["NaN", "Infinity", "-Infinity"])
    )
    if "complex" in name or re.fullmatch("[<>]c.*", name):
        return st.lists(part, min_size=2, max_size=2)
    return part


@st.composite
def v3_documents(draw):
    rank = draw(st.integers(0, 3))
    name = draw(st.sampled_from(V3_DATA_TYPES))
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": draw(st.lists(INTS, min_size=rank, max_size=rank)),
        "data_type": name,
        "chunk_grid": {
            "name": "regular",
            "configuration": {
                "chunk_shape": draw(st.lists(st.integers(1, 9), min_size=rank, max_size=rank))
            },
        },
        "chunk_key_encoding": {"name": draw(st.sampled_from(["default", "v2"]))},
        "fill_value": draw(fill_values(name)),
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    }
    if draw(st.booleans()):
        separator = draw(st.sampled_from("./"))
        document["chunk_key_encoding"]["configuration"] = {"separator": separator}
    if draw(st.booleans()):
        document["attributes"] = draw(st.dictionaries(NAMES, JSON, max_size=3))
        if draw(st.booleans()):
            units = st.sampled_from([None, "nm", "4 nm", "4nm", "", "2", "-1e3 s", "  m "])
            document["attributes"]["dimension_units"] = draw(
                st.lists(units, min_size=rank, max_size=rank)
            )
    if draw(st.booleans()):
        names = st.one_of(st.none(), NAMES)
        document["dimension_names"] = draw(st.lists(names, min_size=rank, max_size=rank))
    if draw(st.booleans()):
        extension = draw(st.dictionaries(NAMES, JSON, max_size=2))
        document[draw(NAMES)] = {**extension, "must_understand": False}
    return document


@st.composite
def v2_documents(draw):
    rank = draw(st.integers(0, 3))
    dtypes = ("|b1", "<i1", "<u2", ">i4", "<u8", "<f2", ">f4", "<f8", ">c8", "<c16", "bfloat16")
    dtype = draw(st.sampled_from([*dtypes, "int4", "float8_e5m2"]))
    document = {
        "zarr_format": 2,
        "shape": draw(st.lists(INTS, min_size=rank, max_size=rank)),
        "chunks": draw(st.lists(st.integers(1, 9), min_size=rank, max_size=rank)),
        "dtype": dtype,
        "compressor": draw(st.sampled_from([None, {"id": "zlib", "level": 1}])),
        "fill_value": draw(st.none() | fill_values("bool" if dtype == "|b1" else dtype)),
        "order": draw(st.sampled_from("CF")),
        "filters": draw(st.sampled_from([None, []])),
    }
    if draw(st.booleans()):
        document["dimension_separator"] = draw(st.sampled_from("./"))
    if draw(st.booleans()):
        document[draw(NAMES)] = draw(JSON)
    return document


def containers(value):
    """All objects and arrays inside `value` that are not empty."""
    if isinstance(value, (dict, list)) and value:
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from containers(inner)


@st.composite
def mutated(draw, documents):
    """A document with up to two values replaced, removed or added."""
    document = copy.deepcopy(draw(documents))
    for _ in range(draw(st.integers(0, 2))):
        target = draw(st.sampled_from(list(containers(document)) or [document]))
        if not target:
            continue
        keys = sorted(target) if isinstance(target, dict) else range(len(target))
        place = draw(st.sampled_from(list(keys)))
        action = draw(st.sampled_from(["replace", "remove", "add", "string"]))
        if action == "replace":
            target[place] = draw(JSON)
        elif action == "remove":
            del target[place]
        elif action == "string":
            target[place] = str(target[place])
        elif isinstance(target, dict):
            target[draw(NAMES)] = draw(JSON)
        else:
            target.append(draw(JSON))
    return document


def has_integral_float(value):
    """Whether an integer was written as 3.0, which we refuse in files."""
    if isinstance(value, list):
        return any(map(has_integral_float, value))
    return isinstance(value, float) and value.is_integer()


def deliberate(version, document, error):
    """Why tensorstore may accept what we refuse (`error`), or the reverse (None)."""
    if error is None:
        return {"zarr3": wider_v3, "zarr2": wider_v2}[version](document)
    text = str(error)
    if error.kind == "limit":
        return "limits"
    if re.search(r"received: -?\d+(\.\d+)?(e\+\d+)?( |$)", text) and any(
        has_integral_float(value) for value in [*document.values(), *grids(document)]
    ):
        return "integers are integers"
    if "Expected value of data type float" in text or "hex digits for the bits" in text:
        return "fill values that the type does not have"
    if '"fill_value": Expected integer in the range [-8, 7]' in text and version == "zarr2":
        return "tensorstore wraps int4"
    if "Invalid floating-point value" in text and "0x" in text.lower():
        return "tensorstore reads hexadecimal numbers"
    if "not supported yet" in text or "structured" in text:
        return "not built yet"
    return None


def grids(document):
    grid = document.get("chunk_grid")
    configuration = grid.get("configuration") if isinstance(grid, dict) else None
    return configuration.values() if isinstance(configuration, dict) else ()


def has_chunk_of_nothing(shape, chunks):
    return any(size == 0 and chunk == 0 for size, chunk in zip(shape, chunks, strict=True))


def wider_v3(document):
    if any(isinstance(codec, str) for codec in document["codecs"]):
        return "codecs by name"
    if isinstance(document["chunk_key_encoding"], str):
        return "chunk key encoding by name"
    if any("must_understand" in one for one in document.values() if isinstance(one, dict)):
        return "must_understand true, where it is said nowhere else"
    if document.get("storage_transformers"):
        return "storage transformers that need not be understood"
    if has_chunk_of_nothing(document["shape"], next(iter(grids(document)))):
        return "chunks of 0 elements"
    if document["codecs"] != [{"name": "bytes", "configuration": {"endian": "little"}}]:
        return "codecs are looked at later"
    names = [name for name in document.get("dimension_names", []) if name]
    if len(set(names)) != len(names):
        return "repeated dimension names"
    return None


def wider_v2(document):
    if document["dtype"] == "|b1" and document["fill_value"] in (0, 1):
        return "booleans as 0 and 1"
    if "filters" not in document or "compressor" not in document:
        return "missing filters and compressor"
    if has_chunk_of_nothing(document["shape"], document["chunks"]):
        return "chunks of 0 elements"
    if document["filters"] or document["compressor"] not in (None, {"id": "zlib", "level": 1}):
        return "codecs are looked at later"
    return None


def check(version, metadata_class, document, oracle):
    data = json.dumps(document).encode()
    reply = oracle.open(version, data)
    try:
        metadata = metadata_class.decode(data, where="x")
    except GpustoreError as refusal:
        error = refusal
        assert error.text.startswith("Error reading x: ")
        agrees = "error" in reply or "died" in reply
    else:
        error = None
        agrees = "metadata" in reply
        again = metadata_class.decode(metadata.encode())
        assert again == metadata
        assert again.encode() == metadata.encode()
    assert agrees or deliberate(version, document, error), (document, error, reply)
    if error is None and agrees:
        check_values(version, metadata, reply)


def check_values(version, metadata, reply):
    written = metadata.to_json()
    opened = reply["metadata"]
    # TensorStore prints integers beyond 64 bits as floats and adds defaults of codecs.
    skipped = {"fill_value", "attributes", "dimension_names", "dtype", "dimension_separator"}
    if version == "zarr2":
        skipped |= {"compressor", *metadata.extra}
    else:
        assert list(metadata.labels) == reply["labels"]
        units = [unit if unit is None else unit.to_json() for unit in metadata.dimension_units]
        assert units == reply["units"]
        skipped |= {"codecs", *metadata.extensions}
    for name in set(written) - skipped:
        assert written[name] == opened[name], name
    name = metadata.dtype.name if version == "zarr2" else metadata.data_type.name
    assert name == reply["dtype"]
    # TensorStore has another exponent bias for e8m0fnu, and sign-extends int2 and int4.
    if metadata.fill_value is not None and name not in ("float8_e8m0fnu", "int2", "int4"):
        assert metadata.fill_value.tobytes().hex() == reply["fill_value"]


@FUZZ
@given(document=v3_documents())
def test_zarr3_metadata_round_trips(document):
    try:
        metadata = Zarr3Metadata.from_json(document)
    except GpustoreError as error:
        assert deliberate("zarr3", document, error), str(error)  # noqa: PT017
        return
    assert Zarr3Metadata.decode(metadata.encode()) == metadata
    written = metadata.to_json()
    for name, value in document.items():
        if name not in ("fill_value", "chunk_key_encoding") and value != {}:
            assert written[name] == value


@FUZZ
@given(document=v2_documents())
def test_zarr2_metadata_round_trips(document):
    metadata = Zarr2Metadata.from_json(document)
    assert Zarr2Metadata.decode(metadata.encode()) == metadata
    written = metadata.to_json()
    for name, value in document.items():
        if name not in ("fill_value", "filters", "dtype"):
            assert written[name] == value


@pytest.mark.slow
@FUZZ
@given(document=mutated(v3_documents()))
def test_zarr3_acceptance_is_that_of_tensorstore(document, oracle):
    check("zarr3", Zarr3Metadata, document, oracle)


@pytest.mark.slow
@FUZZ
@given(document=mutated(v2_documents()))
def test_zarr2_acceptance_is_that_of_tensorstore(document, oracle):
    check("zarr2", Zarr2Metadata, document, oracle)
