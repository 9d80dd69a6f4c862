"""The list of kernel instances."""

import pytest

from gpustore.device.kernels import instance
from gpustore.errors import LimitError


def test_instances_are_few_and_unique():
    expressions = [e for family in instance.INSTANCES.values() for e in family]
    assert len(set(expressions)) == len(expressions) <= 400


def test_rank_for_is_the_smallest_that_is_compiled():
    assert [instance.rank_for("copy_tiled", n) for n in (2, 5, 9)] == [2, 8, 32]
    assert [instance.rank_for("fill_strided", n) for n in (1, 5, 32)] == [1, 32, 32]
    with pytest.raises(LimitError, match="33 dimensions, kernels have at most 32"):
        instance.rank_for("copy_indexed", 33)
