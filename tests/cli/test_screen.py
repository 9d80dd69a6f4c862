"""Output with and without a terminal."""

import re

from gpustore.cli.screen import Screen


def test_a_step_without_a_terminal_is_one_plain_line(capsys):
    with Screen().step("write it", 100) as advance:
        advance(50)
        advance(50)
    assert capsys.readouterr().out.startswith("write it ")
    assert "\x1b" not in capsys.readouterr().out


def test_a_long_step_without_a_terminal_is_a_line_now_and_then(capsys, monkeypatch):
    clock = iter([0, 3, 11, 12, 13, 21.5, 30])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    with Screen(progress=True).step("copy", 4_000_000, rate=True) as advance:
        for _ in range(5):
            advance(500_000)
    out, err = capsys.readouterr()
    lines = [" ".join(line.split()) for line in err.split("\n")]
    assert out == ""
    assert lines == [
        "copy 25 % 1.00 MB of 4.00 MB",
        "copy 62 % 2.50 MB of 4.00 MB",
        "copy 30.00 s",
        "",
    ]


def test_a_step_on_a_terminal_shows_a_bar(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    with Screen().step("write it", 100) as advance:
        advance(100)
    out, err = capsys.readouterr()
    assert out == ""
    assert "\x1b[" in err
    assert "100/100" in err


def test_a_long_step_without_a_terminal_is_silent(capsys):
    with Screen().step("copy", 100, rate=True) as advance:
        advance(100)
    assert capsys.readouterr() == ("", "")


def test_no_color_means_no_colour(capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    Screen().facts("title", [("name", "value")])
    out = capsys.readouterr().out
    assert "name" in out
    assert "\x1b[36m" not in out


def test_tables_are_whole_on_narrow_terminals(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "10")
    screen = Screen()
    screen.table(["name", "crops/s"], [["one by one", "1816.25"]])
    assert "one by one   1816.25" in capsys.readouterr().out
    assert screen.width == 10


def test_long_paths_are_not_folded(capsys):
    path = "/" + "very-long-name/" * 30
    Screen().line(f"Next: {path}")
    assert capsys.readouterr().out == f"Next: {path}\n"


def test_text_is_not_read_as_markup(capsys):
    Screen().line("[bold]x[/bold] :smile:")
    assert capsys.readouterr().out == "[bold]x[/bold] :smile:\n"


def test_facts_keep_their_columns(capsys):
    Screen().facts("title", [("a", "1"), ("long name", "2\n3")])
    lines = capsys.readouterr().out.split("\n")
    assert lines == ["title", "  a          1", "  long name  2", "             3", ""]


def test_a_terminal_folds_long_facts_below_their_beginning(capsys, monkeypatch):
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "40"}.items():
        monkeypatch.setenv(name, value)
    Screen().facts("title", [("name", "word " * 10 + "/" + "long" * 12)])
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).split("\n")
    assert lines == [
        "title",
        "  name  word word word word word word",
        "        word word word word",
        "        /" + "long" * 12,
        "",
    ]


def test_control_codes_of_files_are_not_shown(capsys):
    screen = Screen()
    screen.facts("t", [("a\x1b[31m", "b\x9bc\nd")])
    screen.parts([("x\x1b]0;y", "")])
    assert capsys.readouterr().out == "t\n  a?[31m  b?c\n          d\nx?]0;y\n"
