"""Shows how far a start is."""

from collections.abc import Iterator
from contextlib import contextmanager

from onebert_server.versions.progress import Progress
from onebert_store.command import console


@contextmanager
def shown(progress: Progress) -> Iterator[None]:
    """Shows a start while it goes on: a bar on a terminal, elsewhere a line each half minute."""
    with console.progress(describe=lambda: str(progress)) as bar:
        task = bar.add_task(f"loading {progress.phase}", total=progress.total)

        def tell() -> None:
            bar.update(task, description=f"loading {progress.phase}", completed=progress.done, total=progress.total)

        progress.told = tell
        try:
            yield
        finally:
            progress.told = lambda: None
