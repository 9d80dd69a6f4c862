"""PNG images of 16 bits and several channels; others' are in the tests of the driver."""

import numpy as np
import pytest

import gpustore
from gpustore.codec_chain.image_chunk import ImageChunk
from tests.matrix import each


@each("channels", [2, 3, 4])
@each("level", [None, 0, 9])
def test_pixels_are_kept(channels, level):
    codec = ImageChunk("png", (channels, 2, 3, 5), 2, level)
    elements = np.random.default_rng(channels).integers(0, 1 << 16, (channels, 30), "<u2")
    decoded = codec.decode(codec.encode(elements.tobytes()), elements.nbytes, exact=True)
    assert bytes(decoded) == elements.tobytes()


def test_images_of_8_bits_are_no_chunks_of_16():
    nbytes = 3 * 4
    narrow, wide = (ImageChunk("png", (3, 1, 1, 4), size, None) for size in (1, 2))
    for one, other, size in ((narrow, wide, 1), (wide, narrow, 2)):
        value = one.encode(bytes(nbytes * size))
        with pytest.raises(gpustore.CorruptChunkError, match="for a chunk of shape"):
            other.decode(value, nbytes * (3 - size), exact=True)


@each("channels", [2, 3, 4])
def test_damaged_images_are_refused(channels):
    codec = ImageChunk("png", (channels, 4, 4, 4), 2, None)
    value = codec.encode(np.random.default_rng(1).bytes(128 * channels))
    for damaged in (value[:-13], value[:60] + value[-12:], value[:50] + bytes(9) + value[59:]):
        with pytest.raises(gpustore.CorruptChunkError):
            codec.decode(damaged, 128 * channels, exact=True)
