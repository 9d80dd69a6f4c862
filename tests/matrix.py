"""Many cases in one test, and matrices of which a session goes through every tenth cell.

``@each`` stands where ``@pytest.mark.parametrize`` could: it makes one test of all cases, for which
fixtures are made once and one result is reported. It is for cases that are cheaper than that.

``@pytest.mark.matrix`` has a session go through a tenth of the cells of a test, those of ``@each``
or else of ``parametrize``; tests marked ``matrix(name)`` are cells of one matrix of that name, as
``costly``, the tests that start processes or take a third of a second. One of which a test with the
mark ``long`` does all and more is marked ``matrix(name, long=False)``: ``-m long`` leaves it out.
A seed chooses them, which pytest's header shows: ``--matrix 7`` repeats a choice,
``--matrix whole`` goes through all cells, and so do ``-m long`` and ``-m gpu``; ``--matrix not-7``
goes through those that ``--matrix 7`` leaves out, so that both sessions together try all.

Properties, that is tests of hypothesis, have the mark by themselves: a session tries a tenth of
their 200 examples, or of the number for which ``max_examples=share(number)`` asks.
"""

import functools
import inspect
import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
from hypothesis import is_hypothesis_test, settings
from hypothesis.internal.conjecture import providers

SHARE = 10
"""One cell of so many is chosen."""

_SHOWN = 20


class Case(NamedTuple):
    label: str
    values: dict[str, Any]


def each(
    names: str | Sequence[str], cases: Iterable[Any], ids: Iterable[str] | None = None
) -> Callable[[Any], Any]:
    """Make one test of all cases, which are given as to ``pytest.mark.parametrize``.

    Several decorators multiply. Each case has a folder ``tmp_path`` and a ``monkeypatch`` of its
    own; all other fixtures are shared. Every case is tried, with ``-x`` up to the first that fails;
    those that fail are named.
    """
    split = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    axis = [_case(split, case) for case in cases]
    if ids is not None:
        axis = [Case(str(label), case.values) for label, case in zip(ids, axis, strict=True)]
    if not axis:
        raise ValueError(f"no cases for {names}")

    def decorate(test: Any) -> Any:
        body = getattr(test, "body", test)
        axes = [axis, *getattr(test, "axes", [])]
        parameters = inspect.signature(body).parameters
        given = {name for cases in axes for name in cases[0].values}
        if not given <= set(parameters) or inspect.isgeneratorfunction(body):
            raise TypeError(f"{body.__name__} does not take {sorted(given)}")

        @functools.wraps(body)
        def all_cases(*, request: pytest.FixtureRequest, **fixtures: Any) -> None:
            cells = [_joined(parts) for parts in itertools.product(*axes)]
            is_matrix = request.node.get_closest_marker("matrix")
            if is_matrix and not _is_tried_again(body, request.config):
                cells = chosen(cells, request.config, request.node.nodeid)
            if "request" in parameters:
                fixtures["request"] = request
            _try_all(body, cells, fixtures, request.config.getvalue("maxfail") == 1)

        keyword = inspect.Parameter.KEYWORD_ONLY
        fixtures = [p for p in parameters.values() if p.name not in {*given, "request"}]
        kept = [parameter.replace(kind=keyword) for parameter in fixtures]
        request = inspect.Parameter("request", keyword)
        vars(all_cases).update(
            axes=axes, body=body, __signature__=inspect.Signature([*kept, request])
        )
        return all_cases

    return decorate


def _case(names: Sequence[str], case: Any) -> Case:
    label, values = None, case
    if hasattr(case, "marks"):  # pytest.param(...)
        if case.marks:
            raise TypeError(f"a case of one test has no marks: {case}")
        label, values = case.id, case.values if len(names) > 1 else case.values[0]
    given = dict(zip(names, values if len(names) > 1 else (values,), strict=True))
    return Case(label or ", ".join(f"{name}={value!r}" for name, value in given.items()), given)


def _joined(parts: Iterable[Case]) -> Case:
    parts = tuple(parts)
    values = {name: value for part in parts for name, value in part.values.items()}
    return Case(", ".join(part.label for part in parts), values)


def _try_all(
    body: Callable[..., None],
    cells: Sequence[Case],
    fixtures: dict[str, Any],
    is_one_enough: bool,
) -> None:
    failures: list[BaseException] = []
    skipped = []
    for index, (label, values) in enumerate(cells):
        with ExitStack() as stack:
            own = {}
            if "tmp_path" in fixtures:
                own["tmp_path"] = fixtures["tmp_path"] / str(index)
                own["tmp_path"].mkdir()
            if "monkeypatch" in fixtures:
                own["monkeypatch"] = stack.enter_context(pytest.MonkeyPatch.context())
            try:
                body(**{**fixtures, **own}, **values)
            except pytest.skip.Exception as skip:
                skipped.append(skip)
            except (Exception, pytest.fail.Exception) as error:
                error.add_note(f"Case {index} of {len(cells)}: {label}")
                failures.append(error)
                if is_one_enough:
                    break
    if len(failures) == 1:
        raise failures[0]
    if failures:
        message = f"{len(failures)} of {len(cells)} cases of {body.__name__}"
        raise BaseExceptionGroup(message, failures[:_SHOWN])
    if len(skipped) == len(cells):
        raise skipped[0]
    if skipped:
        pytest.fail(f"{len(skipped)} of {len(cells)} cases would be skipped unseen: {skipped[0]}")


# --------------------------------------------------------------------------- choice of cells


def pytest_addoption(parser: pytest.Parser) -> None:
    words = (
        "seed that chooses every tenth cell of the matrices, 'not-' and a seed for the others, "
        "or 'whole' for all cells"
    )
    parser.addoption("--matrix", metavar="SEED|not-SEED|whole", default=None, help=words)


def pytest_configure(config: pytest.Config) -> None:
    global _session
    _session = config
    if config.option.matrix is None:
        drawn = str(random.SystemRandom().randrange(1000))
        config.option.matrix = getattr(config, "workerinput", {}).get("matrix", drawn)
    # The same examples on every machine; a failure is repeated by running the test again.
    settings.register_profile(
        "gpustore", max_examples=share(200), derandomize=True, deadline=None, database=None
    )
    settings.load_profile("gpustore")
    # Nor any that depend on the modules which a process has imported so far: Hypothesis draws from
    # their constants, for which it parses all of them.
    if hasattr(providers, "_get_local_constants"):
        providers._get_local_constants = providers.Constants


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Processes of pytest-xdist choose the same cells."""
    node.workerinput["matrix"] = node.config.option.matrix


def pytest_report_header(config: pytest.Config) -> str:
    seed, has_chosen, has_others = _choice(config)
    if has_chosen and has_others:
        return "matrices: whole"
    if has_others:
        return f"matrices: cells that --matrix {seed} leaves out"
    return f"matrices: every tenth cell, repeated by --matrix {seed}"


def _choice(config: pytest.Config) -> tuple[str, bool, bool]:
    """The seed, and whether the session tries the cells that it chooses, and the others."""
    matrix = config.option.matrix
    if matrix.startswith("not-"):
        return matrix.removeprefix("not-"), False, True
    is_whole = matrix == "whole" or any(m in config.option.markexpr for m in ("long", "gpu"))
    return matrix, True, is_whole


_session: pytest.Config | None = None


def share(count: int) -> int:
    """How many of so many examples of a property the session tries."""
    _, _, has_others = _choice(_session) if _session else ("", True, True)
    return count if has_others else -(-count // SHARE)


def chosen(cells: Sequence[Any], config: pytest.Config, name: str) -> list[Any]:
    """Those cells of the matrix of that name that the session goes through, in their order."""
    seed, has_chosen, has_others = _choice(config)
    count = -(-len(cells) // SHARE)
    indices = {*random.Random(f"{seed} {name}").sample(range(len(cells)), count)}
    return [cell for i, cell in enumerate(cells) if (has_chosen if i in indices else has_others)]


def chosen_tests(items: Sequence[Any], config: pytest.Config, name: str) -> list[Any]:
    """The same for tests that share a name: each is chosen or not, whichever others there are.

    A session of other files, or with other libraries, chooses alike. At least one is chosen.
    """
    seed, has_chosen, has_others = _choice(config)
    drawn = [random.Random(f"{seed} {name} {item.nodeid}").random() for item in items]
    pairs = list(zip(items, drawn, strict=True))
    found = [one for one, at in pairs if (has_chosen if at < 1 / SHARE else has_others)]
    return found if found or not has_chosen else [items[drawn.index(min(drawn))]]


def is_property(test: Any) -> bool:
    """Whether a session tries a share of the test's examples rather than of its cells."""
    code = getattr(inspect.unwrap(test), "__code__", None)
    names = code.co_names if code is not None else ()
    return is_hypothesis_test(test) or not {"share", "run_state_machine_as_test"}.isdisjoint(names)


def _is_tried_again(test: Any, config: pytest.Config) -> bool:
    """Whether the cells that ``not-SEED`` would leave out had too few examples before."""
    return not _choice(config)[1] and is_property(test)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """Leave out nine of ten cells, or have ``-m long`` select whole matrices."""
    matrices: dict[tuple[Any, str], list[Any]] = defaultdict(list)
    is_long = "long" in config.option.markexpr
    for item in items:
        test = getattr(item, "obj", None)
        mark = item.get_closest_marker("matrix")
        if mark and not hasattr(test, "axes") and not item.get_closest_marker("long"):
            own = item.nodeid.partition("[")[0]
            matrices[(chosen_tests, mark.args[0]) if mark.args else (chosen, own)].append(item)
        if is_hypothesis_test(test):
            item.add_marker("matrix")
        mark = item.get_closest_marker("matrix")
        if is_long and mark and mark.kwargs.get("long", True):
            item.add_marker("long")
    left_out = set()
    for (choose, name), cells in matrices.items():
        others = set(cells) - set(choose(cells, config, name))
        # That of one cell has a share of something else.
        if len(cells) > 1:
            left_out |= {item for item in others if not _is_tried_again(item.obj, config)}
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
