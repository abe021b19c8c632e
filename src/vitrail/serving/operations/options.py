"""What a request may ask of each operation; nothing here needs torch."""

from dataclasses import dataclass
from typing import Literal

from vitrail.core.errors import UserError

Cell = tuple[int, int]  # row and column

MAX_CELLS = 65_536  # of one edit
MAX_MATCHES = 200
MAX_LISTED = 5000  # images
MAX_SIDE = 1024  # pixels of an image that is sent smaller


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """Of an operation that has none."""


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    """One map: by `method`, of the class `target` (its label or number; None: the predicted one).
    `layer`, `head` and `query` are those of the methods that have them."""

    method: str = "auto"
    target: int | str | None = None
    layer: int | str | None = None
    head: int | None = None
    query: int | Cell | None = None


@dataclass(frozen=True, kw_only=True)
class WalkOptions:
    """The attention to follow, counted from the image; its head; and the query: a patch by row and
    column on that attention's grid, or a token of its sequence (None: what the model reads out)."""

    block: int = 0
    head: int = 0
    patch: Cell | None = None
    token: int | None = None

    def __post_init__(self) -> None:
        if self.patch is not None and self.token is not None:
            raise UserError("patch and token choose the same thing: leave one of them out")


@dataclass(frozen=True, kw_only=True)
class Corruption:
    """One of the 15 common corruptions, at a severity from 1 to 5."""

    name: str
    severity: int = 3


@dataclass(frozen=True, kw_only=True)
class ErasedExplanation:
    """Erase the `share` of the cells that a method's map marks as most relevant."""

    method: str = "auto"
    share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise UserError(f"share must be from 0 to 1, got {self.share}")


@dataclass(frozen=True, kw_only=True)
class WhatIfOptions:
    """Edits of the image as the model sees it, in this order: corruption, shift (pixels to the
    right and down), permutation (by a seed), blur, erasure, the erased part of an explanation.

    Cells are those of `grid` (None: the grid of the first attention). With `permute_positions` a
    patch takes its position along, so that the model is told where it came from.
    """

    erase: tuple[Cell, ...] = ()
    blur: tuple[Cell, ...] = ()
    permute: int | None = None
    permute_positions: bool = False
    shift: tuple[int, int] = (0, 0)
    corruption: Corruption | None = None
    grid: Cell | None = None
    explain: ErasedExplanation | None = None

    def __post_init__(self) -> None:
        for name in ("erase", "blur"):
            if (count := len(getattr(self, name))) > MAX_CELLS:
                raise UserError(f"{name} may name {MAX_CELLS} cells, got {count}")
        if self.grid is not None and not 1 <= min(self.grid) <= max(self.grid) <= MAX_SIDE:
            raise UserError(f"grid must be 1 to {MAX_SIDE} cells a side, got {self.grid}")


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """At most `count` images, and their map by principal components or, where umap-learn is
    installed, by UMAP: this is computed meanwhile, so that the first answers may have none yet."""

    count: int = 1000
    map: Literal["pca", "umap"] = "pca"

    def __post_init__(self) -> None:
        if not 0 <= self.count <= MAX_LISTED:
            raise UserError(f"count must be from 0 to {MAX_LISTED}, got {self.count}")


@dataclass(frozen=True, kw_only=True)
class DataImageOptions:
    """One image by its number; `side`: no longer than so many pixels."""

    id: int
    side: int | None = None

    def __post_init__(self) -> None:
        if self.side is not None and not 1 <= self.side <= MAX_SIDE:
            raise UserError(f"side must be 1 to {MAX_SIDE} pixels, got {self.side}")


@dataclass(frozen=True, kw_only=True)
class NeighboursOptions:
    """The `k` nearest images, or patches where `patch` names one of this image's."""

    patch: Cell | None = None
    k: int = 12

    def __post_init__(self) -> None:
        if not 1 <= self.k <= MAX_MATCHES:
            raise UserError(f"k must be from 1 to {MAX_MATCHES}, got {self.k}")


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """One sample photo by its number."""

    id: int
