"""Sizes and codecs as short texts."""

from gpustore.display.text import format_codecs, format_nbytes
from tests.matrix import each


@each(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (12_345_678, "12.3 MB"),
        (123_456_789_012, "123 GB"),
        (5 * 10**18, "5.00 EB"),
        (5 * 10**21, "5000 EB"),
    ],
)
def test_sizes_have_three_digits(nbytes, text):
    assert format_nbytes(nbytes) == text


def test_codecs_of_a_shard_stand_below_it():
    codec = {
        "codecs": [
            {
                "name": "sharding_indexed",
                "configuration": {
                    "chunk_shape": [2, 2],
                    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
                    "index_codecs": [{"name": "crc32c"}],
                },
            }
        ]
    }
    assert format_codecs(codec).split("\n") == [
        "sharding_indexed (chunk_shape [2, 2])",
        '  bytes (endian "little")',
    ]
