"""Output of the commands: lines, tables and progress bars, through rich, imported on use.

On a terminal there are colours and moving bars; elsewhere (a file, a pipe, CI) one plain line for
each step. rich itself honours ``NO_COLOR``.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpustore.cli.failure import CommandError
from gpustore.display.text import format_nbytes, lines_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


_LINE_EVERY_S = 10.0


def missing_library(error: ModuleNotFoundError) -> CommandError:
    """Return the error for a library of the extra ``cli`` that is not installed."""
    library = {"PIL": "pillow"}.get(str(error.name).partition(".")[0], "rich")
    return CommandError(f"{library} is not installed: python -m pip install 'gpustore[cli]'")


class Screen:
    """The user's terminal, or another standard output.

    Raises
    ------
    CommandError
        rich is not installed.
    """

    def __init__(self) -> None:
        try:
            from rich.console import Console
        except ModuleNotFoundError as error:
            raise missing_library(error) from error
        self._console = Console(highlight=False, emoji=False, markup=False)

    def line(self, text: str = "", *, style: str = "") -> None:
        """Print one line without folding it, so that paths can be copied."""
        self._console.print(text, style=style, soft_wrap=True)

    def facts(self, title: str, facts: Sequence[tuple[str, str]]) -> None:
        """Print a title, then a name and a value on each line."""
        self.line(title, style="bold")
        for name, value in lines_of(facts):
            self._console.print(f"  {name}  ", style="cyan", end="", soft_wrap=True)
            self.line(value)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a small table; all columns except the first are numbers."""
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
        for number, column in enumerate(columns):
            table.add_column(column, justify="right" if number else "left", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        self._console.print(table)

    @contextmanager
    def step(
        self, label: str, total_nbytes: int, *, rate: bool = False
    ) -> Iterator[Callable[[int], None]]:
        """Show a progress bar for one step; yields a function that takes the number of new bytes.

        With `rate`, for long steps, the bar also shows the bytes per second; without a terminal a
        line every ten seconds replaces it.
        """
        if not self._console.is_terminal:
            begin = time.perf_counter()
            lines = _Lines(self, label, total_nbytes)
            yield lines.advance if rate else lambda nbytes: None
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
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task(label, total=total_nbytes)
            yield lambda nbytes: progress.advance(task, nbytes)
            progress.update(task, completed=total_nbytes)


class _Lines:
    """Progress of a long step where there is no terminal."""

    def __init__(self, screen: Screen, label: str, total_nbytes: int) -> None:
        self._screen, self._label, self._total = screen, label, total_nbytes
        self._done = 0
        self._next = time.perf_counter() + _LINE_EVERY_S

    def advance(self, nbytes: int) -> None:
        self._done += nbytes
        now = time.perf_counter()
        if now >= self._next:
            self._next = now + _LINE_EVERY_S
            share = f"{100 * self._done // self._total} %"
            sizes = f"{format_nbytes(self._done)} of {format_nbytes(self._total)}"
            self._screen.line(f"{self._label:<10} {share:>5}  {sizes}")
