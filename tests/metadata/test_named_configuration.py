"""Names with options."""

import pytest

from gpustore.errors import MetadataError
from gpustore.metadata.named_configuration import NamedConfiguration, json_equal
from tests.matrix import each


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        ("crc32c", {"name": "crc32c"}),
        ({"name": "crc32c"}, {"name": "crc32c"}),
        ({"name": "crc32c", "configuration": {}}, {"name": "crc32c"}),
        ({"name": "crc32c", "must_understand": True}, {"name": "crc32c"}),
        (
            {"name": "x", "configuration": {"a": None}, "must_understand": False},
            {"name": "x", "configuration": {"a": None}, "must_understand": False},
        ),
    ],
)
def test_forms_are_read_and_printed(value, printed):
    codec = NamedConfiguration.from_json(value)
    assert codec.to_json() == printed
    assert NamedConfiguration.from_json(printed) == codec
    assert hash(NamedConfiguration.from_json(printed)) == hash(codec)


def test_equality_is_that_of_json():
    assert NamedConfiguration("a", {"x": 1}) == NamedConfiguration("a", {"x": 1.0})
    assert hash(NamedConfiguration("a", {"x": 1})) == hash(NamedConfiguration("a", {"x": 1.0}))
    assert NamedConfiguration("a", {"x": 1}) != NamedConfiguration("a", {"x": True})
    assert NamedConfiguration("a") != "a"


@each(
    ("a", "b", "equal"),
    [
        (None, None, True),
        (None, 0, False),
        (0, False, False),
        (1.0, 1, True),
        ([1], [1, 2], False),
        ({"a": 1}, {"b": 1}, False),
        ({"a": 1}, [1], False),
        ({"a": [True]}, {"a": [True]}, True),
        ("a", "b", False),
    ],
)
def test_json_equal(a, b, equal):
    assert json_equal(a, b) is equal
    assert json_equal(b, a) is equal


def test_errors_name_the_position():
    with pytest.raises(MetadataError) as caught:
        NamedConfiguration.list_from_json(["a", {"name": 3}])
    assert str(caught.value) == (
        'Error parsing value at position 1: Error parsing object member "name": '
        "Expected string, but received: 3"
    )
