"""Raw Snappy streams by cramjam, which a machine that only runs tests of a GPU need not have."""

import pytest

try:
    import cramjam
except ImportError:
    cramjam = None

IS_INSTALLED = cramjam is not None


def encode(data):
    return bytes(_library().snappy.compress_raw(data))


def decode(stream):
    """Decode a whole stream; a damaged one is a ValueError."""
    library = _library()
    try:
        return bytes(library.snappy.decompress_raw(stream))
    except library.DecompressionError as error:
        raise ValueError(str(error)) from error


def decoded_nbytes(stream):
    library = _library()
    try:
        return library.snappy.decompress_raw_len(stream)
    except library.DecompressionError as error:
        raise ValueError(str(error)) from error


def _library():
    return pytest.importorskip("cramjam")
