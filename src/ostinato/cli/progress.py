"""A progress bar on standard error for long work; silent where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(what: str, *, is_quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A callback ``(done, total)``. The bar appears at its first call and ends at the last."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(file=sys.stderr)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=console, disable=is_quiet or not console.is_terminal)
    task = bar.add_task(what, total=None, start=True)

    def advance(done: int, total: int) -> None:
        if done < total:
            bar.start()
        bar.update(task, completed=done, total=total)
        if done >= total:
            bar.stop()

    try:
        yield advance
    finally:
        bar.stop()
