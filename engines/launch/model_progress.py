"""How far long work on a model is: a bar on a terminal, one line elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

Tell = Callable[[int, int], None]  # bytes done, bytes in all


@contextmanager
def progress(console: Console, title: str) -> Iterator[Tell]:
    """What to call with each step of the work `title`."""
    if not console.is_terminal:
        console.print(title, soft_wrap=True, markup=False, highlight=False)
        yield lambda _done, _total: None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console, transient=True) as bars:
        task = bars.add_task(title, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
