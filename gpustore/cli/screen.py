"""Output of the commands: lines, tables and progress bars, through rich, imported on use.

On a terminal there are colours and moving bars; elsewhere (a file, a pipe, CI) one plain line for
each step of a report. Bars go to standard error, so that standard output is what a command has
found. rich itself honours ``NO_COLOR``.
"""

from __future__ import annotations

import textwrap
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpustore.cli.failure import CommandError, printable
from gpustore.display.text import format_nbytes, lines_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console


_LINE_EVERY_S = 10.0

_NARROW = 20
_ENDLESS = 10_000
_FOLDING: Any = {"break_long_words": False, "break_on_hyphens": False, "drop_whitespace": True}


def missing_library(error: ModuleNotFoundError) -> CommandError:
    """Return the error for a library of the extra ``cli`` that is not installed."""
    library = {"PIL": "pillow"}.get(str(error.name).partition(".")[0], "rich")
    return CommandError(f"{library} is not installed: python -m pip install 'gpustore[cli]'")


class Screen:
    """The user's terminal, or another standard output.

    Parameters
    ----------
    progress : bool
        Report the progress of long steps also where standard error is no terminal.

    Raises
    ------
    CommandError
        rich is not installed.
    """

    def __init__(self, *, progress: bool = False) -> None:
        try:
            from rich.console import Console
        except ModuleNotFoundError as error:
            raise missing_library(error) from error
        self._console = Console(highlight=False, emoji=False, markup=False)
        self._beside = Console(highlight=False, emoji=False, markup=False, stderr=True)
        self._progress = progress

    @property
    def width(self) -> int:
        """Columns of the terminal, 80 where there is none."""
        return self._console.width

    @property
    def height(self) -> int:
        """Lines of the terminal, 25 where there is none."""
        return self._console.height

    @property
    def has_colours(self) -> bool:
        """Whether standard output shows colours."""
        return self._console.color_system is not None and not self._console.no_color

    def line(self, text: str = "", *, style: str = "") -> None:
        """Print one line without folding it, so that paths can be copied."""
        self._console.print(printable(text, lines=True), style=style, soft_wrap=True)

    def parts(self, parts: Sequence[tuple[str, str]]) -> None:
        """Print one line of several texts, each with its style, without folding it."""
        from rich.text import Text

        line = Text.assemble(*((printable(text), style) for text, style in parts))
        self._console.print(line, soft_wrap=True)

    def entry(self, mark: tuple[str, str], name: str, lines: Sequence[str]) -> None:
        """Print a mark with its style, a name, and lines behind it, folded at spaces."""
        indent = len(mark[0]) + len(name)
        room = max(_NARROW, self.width - indent)
        self._console.print(mark[0], style=mark[1], end="")
        self._console.print(name, style="cyan", end="")
        folded = [one for line in lines for one in textwrap.wrap(line, room, **_FOLDING)]
        for number, one in enumerate(folded):
            self.line(" " * (indent if number else 0) + one)

    def show(self, drawing: Any) -> None:
        """Print something that rich can draw."""
        self._console.print(drawing, end="")

    def folded(self, text: str, room: int) -> list[str]:
        """Divide a text at spaces into lines of `room` columns, if this is a wide terminal."""
        if not self._console.is_terminal or room < _NARROW:
            return [text]
        return textwrap.wrap(text, room, **_FOLDING) or [""]

    def facts(self, title: str, facts: Sequence[tuple[str, str]]) -> None:
        """Print a title, then a name and a value on each line; a terminal folds long values."""
        self.line(title, style="bold")
        for name, value in lines_of(facts):
            for number, line in enumerate(self.folded(value, self.width - len(name) - 4)):
                shown = " " * len(name) if number else printable(name)
                self._console.print(f"  {shown}  ", style="cyan", end="", soft_wrap=True)
                self.line(line)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a small table; all columns except the first are numbers.

        Lines are longer than a narrow terminal, which folds them: cut numbers would be wrong.
        """
        from rich import box
        from rich.measure import Measurement
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
        for number, column in enumerate(columns):
            table.add_column(column, justify="right" if number else "left", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        console, width = self._console, self._console.width
        endless = console.options.update(width=_ENDLESS)
        console.width = max(width, Measurement.get(console, endless, table).maximum)
        console.print(table)
        console.width = width

    @contextmanager
    def step(
        self, label: str, total_nbytes: int, *, rate: bool = False
    ) -> Iterator[Callable[[int], None]]:
        """Show a progress bar for one step; yields a function that takes the number of new bytes.

        With `rate`, for long steps, the bar also shows the bytes per second. Without a terminal
        such a step is silent, or a line every ten seconds with ``Screen(progress=True)``; one
        without `rate` is a line of the report.
        """
        if rate and not self._beside.is_terminal:
            if self._progress:
                lines = _Lines(self._beside, label, total_nbytes)
                yield lines.advance
                lines.end()
            else:
                yield lambda nbytes: None
            return
        if not self._beside.is_terminal:
            begin = time.perf_counter()
            yield lambda nbytes: None
            self.line(f"{label:<34} {time.perf_counter() - begin:6.2f} s")
            return
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
            TransferSpeedColumn,
        )

        columns = (
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description}" if rate else "{task.description:<34}"),
            BarColumn(bar_width=24),
            DownloadColumn(),
            *((TransferSpeedColumn(),) if rate else ()),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._beside) as progress:
            task = progress.add_task(label, total=total_nbytes)
            yield lambda nbytes: progress.advance(task, nbytes)
            progress.update(task, completed=total_nbytes)


class _Lines:
    """Progress of a long step where there is no terminal."""

    def __init__(self, console: Console, label: str, total_nbytes: int) -> None:
        self._console, self._label, self._total = console, label, total_nbytes
        self._done = 0
        self._begin = time.perf_counter()
        self._next = self._begin + _LINE_EVERY_S

    def advance(self, nbytes: int) -> None:
        self._done += nbytes
        now = time.perf_counter()
        if now >= self._next:
            self._next = now + _LINE_EVERY_S
            share = f"{100 * self._done // max(1, self._total)} %"
            sizes = f"{format_nbytes(self._done)} of {format_nbytes(self._total)}"
            self._print(f"{self._label:<10} {share:>5}  {sizes}")

    def end(self) -> None:
        self._print(f"{self._label:<10} {time.perf_counter() - self._begin:.2f} s")

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)
