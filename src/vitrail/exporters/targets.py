"""The table of targets: what a model can be exported to."""

from pathlib import Path

from vitrail.core.errors import UserError, nearest
from vitrail.exporters import coreml, executorch, litert, onnx, openvino
from vitrail.exporters.target import Target
from vitrail.exporters.web import target as web

TARGETS = {one.TARGET.name: one.TARGET for one in (onnx, openvino, coreml, executorch, litert, web)}


def find_target(out: Path, to: str | None) -> Target:
    """The target of that name, or the one whose files have the suffix of `out`; a folder has none.

    >>> find_target(Path("model.onnx"), None).title
    'ONNX'
    """
    if to is not None and to not in TARGETS:
        raise UserError(f"to must be an export target, got {to!r}: {nearest(to, TARGETS)}")
    known = {target.suffix: target for target in TARGETS.values() if not target.folder}
    if to is None:
        if out.suffix.lower() not in known:
            raise UserError(
                f"{out}: the file must end in {', '.join(known)}, got {out.suffix!r}: "
                'its suffix names the target, and to="web" writes a folder'
            )
        return known[out.suffix.lower()]
    if TARGETS[to].folder:
        if out.suffix.lower() in known:
            raise UserError(f"{out}: a folder for {to} must not end in {out.suffix}")
    elif out.suffix.lower() != TARGETS[to].suffix:
        raise UserError(f"{out}: a file for {to} must end in {TARGETS[to].suffix}")
    return TARGETS[to]
