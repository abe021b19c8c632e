"""The output directory of a task: written as a whole, and never over files of others.

`OUT/.vitrail.json` lists which files each verb wrote there, with their SHA-256. Only these are ever
replaced or removed, only with `overwrite`, and not where somebody has changed them since.
"""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path, PurePosixPath

from vitrail.core.errors import UserError, writing
from vitrail.core.json_text import to_json
from vitrail.weights.atomic import draft_beside, sweep_drafts, write_file
from vitrail.weights.files import digest

LISTING = ".vitrail.json"
DRAFT = "vitrail-draft"
FORMAT = 1


@dataclass(frozen=True)
class Results:
    """The files that one verb has in a directory, by their path in it."""

    out: Path
    verb: str
    overwrite: bool = False

    def check(self, names: Sequence[str] = (), *, alone: bool = False) -> None:
        """Refuse, before any work, what could not be written at its end: `names` are files that
        will be written; `alone`: the names are not known yet, so all of OUT has to be ours."""
        if self.out.exists() and not self.out.is_dir():
            raise UserError(f"{self.out}: cannot be written: it is a file, not a directory")
        ours = self.listed()
        if ours and not self.overwrite:
            raise UserError(
                f"{self.out}: already contains results of vitrail {self.verb}: choose "
                "another directory, or pass overwrite=True"
            )
        there = [name for name in names if os.path.lexists(self.out / name)]
        if alone and not ours and self.out.is_dir():
            own = (LISTING, f".{DRAFT}.tmp-")
            there = [path.name for path in self.out.iterdir() if not path.name.startswith(own)]
        self._refuse_foreign(there)
        self._refuse_foreign([name for name in ours if os.path.lexists(self.out / name)])

    def listed(self) -> dict[str, str]:
        """What this verb wrote here before, with each file's SHA-256."""
        return self._read().get(self.verb, {})

    @contextmanager
    def draft(self) -> Iterator[Path]:
        """A directory to write into. Its files move to OUT when all are written, in place of what
        was there before; where that does not come about, nothing has changed."""
        made = not self.out.exists()
        with writing(self.out):
            self.out.mkdir(parents=True, exist_ok=True)  # before the work, not after it
            sweep_drafts(self.out / DRAFT)
            draft = draft_beside(self.out / DRAFT)  # inside: OUT may be a file system of its own
            draft.mkdir()
        try:
            yield draft
            with writing(self.out):
                self._take(draft)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
            if made:
                with suppress(OSError):  # it holds something: the results, or somebody's files
                    self.out.rmdir()

    def remove(self) -> None:
        """Take back all that was written here before, and directories that are empty then."""
        self.check()
        for name in self.listed():
            (self.out / name).unlink(missing_ok=True)
            for folder in PurePosixPath(name).parents[:-1]:
                with suppress(OSError):  # not empty
                    (self.out / folder).rmdir()
        self._record({})

    def record(self, names: Sequence[str]) -> None:
        """List files that were written to OUT directly."""
        self._record({name: digest(self.out / name) for name in names})

    def _take(self, draft: Path) -> None:
        before = self.listed()
        files = (path for path in draft.rglob("*") if path.is_file())
        new = {path.relative_to(draft).as_posix(): digest(path) for path in sorted(files)}
        self._refuse_foreign([name for name in new if os.path.lexists(self.out / name)])
        self._record(before | new)  # first, so that whatever happens now, all is known as ours
        for name in new:
            (self.out / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(draft / name, self.out / name)
        for name in before.keys() - new.keys():
            (self.out / name).unlink(missing_ok=True)
        self._record(new)

    def _refuse_foreign(self, names: Sequence[str]) -> None:
        ours = self.listed()
        for name in names:
            path = self.out / name
            if name not in ours or not path.is_file() or digest(path) != ours[name]:
                others = (verb for verb, known in self._read().items() if name in known)
                if (verb := next(others, self.verb)) != self.verb:
                    raise UserError(
                        f"{self.out}: already contains results of vitrail {verb}: choose another "
                        "directory"
                    )
                what = "was changed since" if name in ours else "was not written by"
                wrote = " wrote it" if name in ours else ""
                raise UserError(
                    f"{path} {what} vitrail {self.verb}{wrote} and was not replaced: choose "
                    "another directory, or move it away"
                )

    def _read(self) -> dict[str, dict[str, str]]:
        try:
            found = json.loads((self.out / LISTING).read_text(encoding="utf-8"))
            if found["format"] != FORMAT:
                raise ValueError
            return {
                verb: {_inside(name): str(known) for name, known in files.items()}
                for verb, files in found["verbs"].items()
            }
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            raise UserError(
                f"{self.out / LISTING}: cannot be read: remove it, or choose another directory"
            ) from None

    def _record(self, files: dict[str, str]) -> None:
        verbs = {**self._read(), self.verb: files}
        verbs = {verb: known for verb, known in verbs.items() if known}
        if not verbs:
            (self.out / LISTING).unlink(missing_ok=True)
            return
        text = to_json({"format": FORMAT, "verbs": verbs}, indent=1) + "\n"
        write_file(self.out / LISTING, lambda draft: _write(draft, text), overwrite=True)


@contextmanager
def writing_results(
    out: str | PathLike[str] | None,
    verb: str,
    names: Sequence[str] | None,
    *,
    overwrite: bool,
    dry_run: bool = False,
) -> Iterator[Path | None]:
    """A directory to write `names` into, which move to `out` when all are written; None where there
    is no `out`, and in a dry run. Where `names` is None they are not known yet, so that `out` must
    hold nothing else. What could not be written is refused before the work begins."""
    if out is None:
        yield None
        return
    results = Results(Path(out), verb, overwrite)
    results.check(names or (), alone=names is None)
    if dry_run:
        yield None
        return
    with results.draft() as draft:
        yield draft


def _inside(name: str) -> str:
    """A path below the directory, whatever a listing that somebody wrote says."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(name)
    return name


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
