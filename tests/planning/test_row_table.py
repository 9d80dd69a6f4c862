"""Row tables have the rows of the plan's windows, each once, in units of rows that share a key."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.planning import chunk_plan
from tests.planning.test_chunk_plan import cases


def rows_of_window(window):
    """Key, cells, starts, counts and points of each row."""
    for i, key in enumerate(window.keys):
        points = window.points[i] if window.points is not None else ()
        yield (
            key,
            tuple(int(column[i]) for column in window.cells),
            int(window.src_start[i]),
            int(window.dst_start[i]),
            tuple(int(column[i]) for column in window.count),
            tuple((tuple(src.tolist()), tuple(dst.tolist())) for src, dst in points),
        )


def rows_of_table(plan, table):
    words = np.asarray(table.words)
    cells, _, src, dst, count, _ = table.offsets()
    for i in range(table.rows):
        cell = tuple(int(words[cells + d * table.rows + i]) for d in range(table.rank))
        counts = [int(words[count + d * table.rows + i]) for d in range(table.input_rank)]
        parts = [slice(one.begin[i], one.end[i]) for one in table.points]
        points = [
            (tuple(one.src[part].tolist()), tuple(one.dst[part].tolist()))
            for one, part in zip(table.points, parts)
        ]
        key = plan.format.keys([np.array([index]) for index in cell], 1)[0]
        yield key, cell, int(words[src + i]), int(words[dst + i]), tuple(counts), tuple(points)


@given(
    cases(),
    st.integers(1, 9),
    st.integers(1, 70),
    st.integers(1, 5),
    st.integers(1, 9),
)
def test_tables_have_every_row_once(case, window_rows, listed, parts, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_plan, "TABLE_LISTED", listed)
        for _, plan in case.plans():
            step = range(0, len(plan), chunk_plan.WINDOW_ROWS)
            windows = [plan.window(at, min(at + step.step, len(plan))) for at in step]
            expected = Counter(row for window in windows for row in rows_of_window(window))
            with pytest.MonkeyPatch.context() as shorter:
                shorter.setattr(chunk_plan, "WINDOW_ROWS", window_rows)
                tables = list(plan.tables(parts, most))
            found = [list(rows_of_table(plan, table)) for table in tables]
            assert Counter(row for rows in found for row in rows) == expected
            for table, rows in zip(tables, found):
                check_units(table, rows, most)
                written = plan.rows_of(table, range(len(rows)))
                assert list(rows_of_window(written)) == rows


def check_units(table, rows, most):
    """Units have all rows of a table in order, and one key each."""
    edges = np.asarray(table.words)[: table.units + 1].tolist()
    assert edges[0] == 0
    assert edges[-1] == table.rows == len(rows)
    for begin, end in pairwise(edges):
        assert begin < end <= begin + most
        assert len({row[0] for row in rows[begin:end]}) == 1
