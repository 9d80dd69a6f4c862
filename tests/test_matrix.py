"""Many cases in one test, and the choice of cells."""

from types import SimpleNamespace

import pytest

from tests.matrix import SHARE, chosen, each, share


@each("letter", "ab")
@each("number, word", [(1, "one"), pytest.param(2, "two", id="second")])
def tried(seen, letter, number, word):
    seen.append((letter, number, word))
    assert "two" not in word, "no more than one"


def test_all_cases_of_a_product_are_tried_and_those_that_fail_named(request, monkeypatch):
    monkeypatch.setattr(request.config.option, "maxfail", 0)
    seen = []
    with pytest.raises(BaseExceptionGroup, match="2 of 4 cases of tried") as caught:
        tried(request=request, seen=seen)
    assert seen == [(a, n, w) for a in "ab" for n, w in ((1, "one"), (2, "two"))]
    notes = [error.__notes__ for error in caught.value.exceptions]
    assert notes == [["Case 1 of 4: letter='a', second"], ["Case 3 of 4: letter='b', second"]]


def test_one_failure_is_enough_if_it_ends_the_session(request, monkeypatch):
    monkeypatch.setattr(request.config.option, "maxfail", 1)
    seen = []
    with pytest.raises(AssertionError):
        tried(request=request, seen=seen)
    assert seen == [("a", 1, "one"), ("a", 2, "two")]


def test_one_failure_is_itself(request):
    @each("number", range(3), ids="xyz")
    def fails_once(number):
        assert number != 1

    with pytest.raises(AssertionError) as caught:
        fails_once(request=request)
    assert caught.value.__notes__ == ["Case 1 of 3: y"]


@each("number", range(3))
def test_each_case_has_a_folder_and_patches_of_its_own(tmp_path, monkeypatch, number):
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    assert not hasattr(pytest, "patched_here")
    monkeypatch.setattr(pytest, "patched_here", number, raising=False)


def test_skipped_cases_are_not_hidden_by_others(request):
    @each("number", range(3))
    def skips(least, number):
        if number >= least:
            pytest.skip("not here")

    with pytest.raises(pytest.skip.Exception, match="not here"):
        skips(request=request, least=0)
    with pytest.raises(pytest.fail.Exception, match="1 of 3 cases would be skipped unseen"):
        skips(request=request, least=2)


@pytest.mark.parametrize(
    "cases",
    [[], [pytest.param(1, marks=pytest.mark.slow)], [(1, 2)]],
    ids=["none", "marked", "of another number of values"],
)
def test_cases_that_would_not_be_tried_as_written_are_refused(cases):
    with pytest.raises((TypeError, ValueError)):
        each("a, b, c", cases)


def test_names_are_those_of_parameters():
    with pytest.raises(TypeError, match="does not take"):
        each("other", [1])(lambda number: None)


def configured(matrix, markexpr=""):
    return SimpleNamespace(option=SimpleNamespace(matrix=matrix, markexpr=markexpr))


def test_a_sixth_of_the_cells_is_chosen_and_again_with_the_same_seed():
    cells = [f"cell {index}" for index in range(100)]
    first = chosen(cells, configured("7"), "name")
    assert len(first) == 17 == -(-100 // SHARE)
    assert first == sorted(set(first), key=cells.index)
    assert first == chosen(cells, configured("7"), "name")
    assert first != chosen(cells, configured("8"), "name")
    assert first != chosen(cells, configured("7"), "other name")
    sessions = [chosen(cells, configured(str(seed)), "name") for seed in range(100)]
    assert {cell for session in sessions for cell in session} == set(cells)


@pytest.mark.parametrize("config", [configured("whole"), configured("7", "long")])
def test_whole_matrices(config):
    assert chosen(range(10), config, "name") == list(range(10))


def test_a_sixth_of_the_examples_is_tried(request):
    assert share(200) == (200 if len(chosen(range(9), request.config, "")) == 9 else 34)


@pytest.mark.matrix
@pytest.mark.parametrize("cell", range(9))
def test_a_session_has_a_sixth_of_the_tests(cell, request):
    items = request.session.items
    tests = [item for item in items if getattr(item, "function", None) is request.function]
    assert len(tests) <= len(chosen(range(9), request.config, ""))


def named(request):
    marks = [item.get_closest_marker("matrix") for item in request.session.items]
    return [mark for mark in marks if mark and mark.args == ("named",)]


@pytest.mark.matrix("named")
@pytest.mark.parametrize("cell", range(5))
def test_a_session_has_a_sixth_of_the_tests_of_one_name(cell, request):
    assert 1 <= len(named(request)) <= len(chosen(range(9), request.config, ""))


@pytest.mark.matrix("named")
@pytest.mark.parametrize("cell", range(4))
def test_other_tests_of_one_name_are_cells_of_the_same_matrix(cell, request):
    assert 1 <= len(named(request)) <= len(chosen(range(9), request.config, ""))


@pytest.mark.matrix
def test_a_session_has_a_sixth_of_the_cells_of_one_test(request):
    seen = []
    each("cell", range(9))(lambda cell: seen.append(cell))(request=request)
    assert seen == chosen(range(9), request.config, request.node.nodeid)
