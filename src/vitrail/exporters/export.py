"""Exporting: convert under another name, compare with the model, and only then put it in place."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.html_text import html_table
from vitrail.core.json_text import to_json
from vitrail.data.reader import ImageSource
from vitrail.exporters.target import CannotRunError, Request, Target
from vitrail.exporters.verify import Check, verify
from vitrail.inference.graph import quiet
from vitrail.inference.quantisation import Quantisation
from vitrail.weights.atomic import write_directory, write_together

Step = Callable[[str], None]
RECORD = "export.json"  # in a folder


@dataclass(frozen=True, kw_only=True)
class Export:
    """A file that was exported: where, how large, and how it compares with the model on photos;
    `check` is None where files of this target do not run on this machine, and a note says why."""

    target: str
    file: Path
    size: int
    precision: str
    outputs: tuple[str, ...]
    check: Check | None
    notes: tuple[str, ...] = ()
    quantisation: Quantisation | None = None

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        check = self.check
        return {
            "target": self.target,
            "file": str(self.file),
            "size": self.size,
            "precision": self.precision,
            "outputs": list(self.outputs),
            "images": check.images if check else 0,
            "max_difference": check.max_difference if check else None,
            "tolerance": check.tolerance if check else None,
            "label_agreement": check.label_agreement if check else None,
            "sizes": [list(size) for size in check.sizes] if check else [],
            "latency_ms": check.latency_ms if check else None,
            "notes": list(self.notes),
            "quantisation": self.quantisation.facts() if self.quantisation else None,
        }

    def lines(self) -> list[str]:
        """For people: the file, then a line for each fact."""
        lines = [f"{self.file}: {self.target}, {self.precision}, {self.size / 1e6:,.1f} MB"]
        if self.check is not None:
            check, time = self.check, self.check.latency_ms
            agree = check.label_agreement
            same = "" if agree is None else f", the same label for {agree:.0%}"
            lines.append(
                f"largest difference from the model {check.max_difference:.2g} on "
                f"{check.images} photos{same}"
            )
            if len(check.sizes) > 1:
                sizes = ", ".join(f"{height}x{width}" for height, width in check.sizes)
                lines.append(f"compared at {sizes}")
            lines.append(f"one image: {time['exported']:.1f} ms, in PyTorch {time['eager']:.1f} ms")
        if self.quantisation is not None:
            lines += self.quantisation.lines()
        return [*lines, *(f"note: {note}" for note in self.notes)]

    def __repr__(self) -> str:
        return "\n".join(["Export", *self.lines()])

    def _repr_html_(self) -> str:
        return html_table("Export", self.facts())


def record_path(out: Path, target: Target) -> Path:
    """Where the record of a comparison is: beside the file, with .json added to its name, or in the
    folder."""
    return out / RECORD if target.folder else out.with_name(f"{out.name}.json")


def export_model(
    request: Request,
    target: Target,
    out: Path,
    photos: Sequence[ImageSource],
    *,
    overwrite: bool = False,
    on_step: Step = lambda step: None,
) -> Export:
    """Write the file, its parts if it has several, and the record of its comparison (OUT.json); or
    a folder, with the record in it."""
    target.check(request)
    metadata = target.metadata(request)
    done: list[Export] = []

    def fill(folder: Path) -> None:
        on_step("converting")
        draft = folder if target.folder else folder / out.name
        quantisation = convert(request, target, metadata.to_strings(), draft)
        on_step("comparing with the model")
        check, notes = compare(request, target, draft, photos)
        notes += tuple(remarks(request, target))
        record = Export(
            target=target.name,
            file=out,
            size=sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
            precision=request.precision,
            outputs=metadata.graph.outputs,
            check=check,
            notes=notes,
            quantisation=quantisation,
        )
        done.append(record)
        facts: dict[str, Any] = record.facts()
        if not target.embeds_metadata:
            facts |= {"metadata": metadata.to_strings()}
        if target.folder:
            facts |= {"files": files_in(folder)}
        text = to_json(facts, indent=2) + "\n"
        record_path(draft, target).write_text(text, encoding="utf-8")

    if target.folder:
        empty = out.is_dir() and not any(out.iterdir())
        write_directory(out, fill, overwrite=overwrite or empty)
    else:
        write_together(out, fill, overwrite=overwrite)
    return done[0]


def files_in(folder: Path) -> list[str]:
    """The files below a folder, by their paths from there."""
    found = (file for file in folder.rglob("*") if not file.is_dir() or file.is_symlink())
    return sorted(file.relative_to(folder).as_posix() for file in found)


def convert(
    request: Request, target: Target, metadata: dict[str, str], draft: Path
) -> Quantisation | None:
    """The converter's work; what it raises is one sentence."""
    try:
        with quiet_process():
            return target.convert(request, metadata, draft)
    except shutil.Error:  # a list, of every file that could not be copied
        check_disk(request, draft if target.folder else draft.parent)
        raise
    except (UserError, OSError, MemoryError):
        raise
    except Exception as error:  # converters raise whatever they like
        check_disk(request, draft if target.folder else draft.parent)
        reason = next((line for line in str(error).splitlines() if line.strip()), "no reason given")
        raise UserError(
            f"{target.title}: the converter cannot export this {type(request.model).__name__}: "
            f"{type(error).__name__}: {reason.strip()}"
        ) from error


def check_disk(request: Request, folder: Path) -> None:
    """Raise the `OSError` of a full disk, of which converters say something else: there is no room
    for the weights, or no more can be written to the files in this folder, which is thrown away."""
    size = sum(tensor.nbytes for tensor in request.model.state_dict().values())
    if shutil.disk_usage(folder).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    found = [path for path in folder.rglob("*") if path.is_file()]
    for path in (*found, folder / "more"):
        with path.open("ab") as file:
            file.write(bytes(2**20))


def compare(
    request: Request, target: Target, draft: Path, photos: Sequence[ImageSource]
) -> tuple[Check | None, tuple[str, ...]]:
    with quiet_process():
        try:
            run = target.open(draft)
        except CannotRunError as reason:
            return None, (str(reason),)
        return verify(request, target, run, photos), ()


@contextmanager
def quiet_process() -> Iterator[None]:
    """As `quiet`, and without what native libraries print on standard error themselves."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        with quiet():
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def remarks(request: Request, target: Target) -> list[str]:
    """What a user of the file should know."""
    notes = []
    head = [part for name, part in request.model.named_parameters() if name.startswith("head")]
    if head and not any(part.any() for part in head):
        notes.append("the model's head is new and untrained: it gives every image the same scores")
    if not target.embeds_metadata:
        notes.append(f"{target.title} files hold no metadata: labels and passport are in the .json")
    return notes
