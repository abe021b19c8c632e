"""Where a task writes its files, if anywhere: whole, and in place of nobody else's."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from vitrail.weights.results import Results


@contextmanager
def writing_results(
    out: str | PathLike[str] | None, verb: str, names: Sequence[str] | None, *, overwrite: bool
) -> Iterator[Path | None]:
    """A directory to write `names` into, which move to `out` when all are written; None where there
    is no `out`. Where `names` is None they are not known yet, so that `out` must hold nothing else.
    What could not be written is refused before the work begins."""
    if out is None:
        yield None
        return
    results = Results(Path(out), verb, overwrite)
    results.check(names or (), alone=names is None)
    with results.draft() as draft:
        yield draft
