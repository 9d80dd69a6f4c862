"""nvcomp's prototypes and structs as ctypes has them, against the headers in its wheels."""

import ctypes
import re

import pytest

from gpustore.backends.nvcomp import abi
from gpustore.device.protocol import STATUSES
from tests.backends.cuda.wheels import nvcomp_headers

CTYPES = {
    "size_t": ctypes.c_size_t,
    "cudaStream_t": ctypes.c_void_p,
}

FIELDS = {
    "int": ctypes.c_int,
    "bool": ctypes.c_bool,
    "char": ctypes.c_char,
    "size_t": ctypes.c_size_t,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
}


@pytest.fixture(params=abi.ROWS)
def version(request):
    headers = nvcomp_headers(request.param)
    text = "\n".join(headers.values())
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)
    return request.param, text


def prototype(text, function):
    """Names and ctypes of the arguments of a function of a header."""
    (arguments,) = re.findall(rf"nvcompStatus_t\s+{function}\s*\(([^)]*)\)", text)
    found = {}
    for argument in arguments.split(","):
        words = argument.replace("*", " * ").split()
        name, kind = words[-1], [word for word in words[:-1] if word != "const"]
        if "*" in kind:
            found[name] = ctypes.c_void_p
        elif re.fullmatch(r"nvcompBatched\w+(De)?[cC]ompressOpts_t", kind[0]):
            found[name] = abi.Options
        else:
            found[name] = CTYPES[kind[0]]
    return found


def layout(text, struct):
    """Bytes of a struct of a header, and of each of its fields, by a C compiler's rules."""
    (body,) = re.findall(rf"typedef struct\s*\{{([^}}]*)\}}\s*{struct}\s*;", text)
    offset, alignment, fields = 0, 1, {}
    for line in filter(None, map(str.strip, body.split(";"))):
        kind, name, count = re.fullmatch(r"(\w+)\s+(\w+)\s*(?:\[(\d+)\])?", line).groups()
        # What is not a number is an enumeration.
        of_one = FIELDS.get(kind, ctypes.c_int)
        align = ctypes.alignment(of_one)
        offset = -(-offset // align) * align
        fields[name] = (offset, ctypes.sizeof(of_one) * int(count or 1))
        offset += fields[name][1]
        alignment = max(alignment, align)
    return -(-offset // alignment) * alignment, fields


def test_prototypes_are_those_of_the_headers(version):
    major, text = version
    found = abi.prototypes(major)
    assert len(found) == 6 * len(abi.FORMATS)
    for function, expected in found.items():
        assert list(prototype(text, function).items()) == list(expected.items()), function


@pytest.mark.parametrize(
    ("struct", "ours"),
    [
        ("nvcompAlignmentRequirements_t", abi.Alignments),
        ("nvcompProperties_t", abi.Properties),
    ],
)
def test_structs_are_those_of_the_headers(version, struct, ours):
    nbytes, fields = layout(version[1], struct)
    assert ctypes.sizeof(ours) == nbytes
    names = [name for name, *_ in ours._fields_]
    assert {
        name: (getattr(ours, name).offset, getattr(ours, name).size) for name in names
    } == fields


@pytest.mark.parametrize("codec", abi.FORMATS)
@pytest.mark.parametrize("verb", ["Compress", "Decompress"])
def test_options_are_64_bytes_that_begin_with_the_word_that_is_set(version, codec, verb):
    major, text = version
    struct = f"nvcompBatched{abi.FORMATS[codec]}{verb}Opts_t"
    nbytes, fields = layout(text, struct)
    assert nbytes == ctypes.sizeof(abi.Options) == 64
    first, _ = next(iter(fields.items()))
    word = abi.ROWS[major][2].get(codec, 0)
    if verb == "Decompress":
        assert first == "backend"
    elif word:
        assert first == "algorithm"
    else:
        assert first in ("reserved", "data_type")


def test_default_options_to_compress_are_those_of_the_headers(version):
    major, text = version
    for codec, name in abi.FORMATS.items():
        pattern = rf"nvcompBatched{name}CompressDefaultOpts\s*=\s*\{{\s*(\w+|\{{0\}})"
        (first,) = re.findall(pattern, text)
        value = {"NVCOMP_TYPE_CHAR": 0, "{0}": 0}.get(first, first)
        assert int(value) == abi.ROWS[major][2].get(codec, 0)


def test_the_backend_that_is_asked_for_is_cuda(version):
    assert re.search(r"NVCOMP_DECOMPRESS_BACKEND_CUDA\s*=\s*2\b", version[1])


def test_statuses_have_nvcomps_numbers(version):
    (body,) = re.findall(r"typedef enum nvcompStatus_t\s*\{([^}]*)\}", version[1])
    numbers = {int(number) for number in re.findall(r"=\s*(\d+)", body)}
    assert set(STATUSES) <= numbers


@pytest.mark.parametrize("codec", abi.FORMATS)
@pytest.mark.parametrize(("verb", "place"), [("Decompression", 0), ("Compression", 1)])
def test_longest_streams_are_those_of_the_headers(version, codec, verb, place):
    major, text = version
    name = f"nvcomp{abi.FORMATS[codec]}{verb}MaxAllowedChunkSize"
    found = re.findall(rf"{name}\s*=\s*([^;]*);", text)
    if not found:
        # To decode it is only in a comment; to encode it is new in 6.0.
        assert codec == "gzip"
        assert (major, verb) in ((5, "Decompression"), (6, "Decompression"), (5, "Compression"))
        return
    expression = re.sub(r"(?<=[0-9A-F])[uUlL]+\b|\(size_t\)", "", found[0])
    assert re.fullmatch(r"[\s\dxA-F()<+*-]+", expression), found[0]
    assert abi.LARGEST[codec][place] <= eval(expression)
