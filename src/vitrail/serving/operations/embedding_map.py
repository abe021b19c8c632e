"""Images as points: by principal components at once, or by UMAP, which is computed beside the
requests. It compiles itself first, and that takes longer than a request may."""

import importlib.util
import logging
import warnings
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from threading import Thread
from typing import Any

import numpy as np
from jaxtyping import Float

from vitrail.core.errors import UserError
from vitrail.serving.operations.data_context import DataContext, Points

FEWEST_FOR_UMAP = 15
WAIT = 1.0  # seconds that a request waits for UMAP
NEIGHBOURS = 15  # the default of umap-learn

logger = logging.getLogger(__name__)


def make_map(
    data: DataContext, ids: list[int], method: str, wait: float = WAIT
) -> dict[str, Any] | None:
    """Two numbers for each image, so that images with like features lie together. While `pending`
    is computed, the points are those of principal components."""
    if len(ids) < 2:
        return None
    if method == "umap" and not has_umap():
        raise UserError("map by umap needs the package umap-learn: install it, or use map pca")
    methods = ["pca", *(["umap"] if has_umap() and len(ids) >= FEWEST_FOR_UMAP else [])]
    rows = np.stack([data.features[index] for index in ids]).astype(np.float64)
    if method in methods and method == "umap":
        found = umap_of(data, tuple(ids), rows, wait)
        if found is not None:
            return {
                "method": "umap", "points": found, "variance": None, "methods": methods,
                "pending": None,
            }  # fmt: skip
    points, variance = pca_points(rows)
    pending = "umap" if method == "umap" and "umap" in methods else None
    return {
        "method": "pca", "points": points, "variance": variance, "methods": methods,
        "pending": pending,
    }  # fmt: skip


def has_umap() -> bool:
    return importlib.util.find_spec("umap") is not None


def pca_points(rows: Float[np.ndarray, "N D"]) -> tuple[Points, list[float]]:
    """The first two principal components, and the share of the variance that each holds."""
    from sklearn.decomposition import PCA

    count = min(2, *rows.shape)
    if not np.isfinite(rows).all() or np.ptp(rows, axis=0).max() == 0:  # all the same, or NaN
        return [[0.0, 0.0] for _ in rows], [0.0, 0.0]
    solver = PCA(n_components=count, svd_solver="randomized" if len(rows) > 500 else "full")
    solver.random_state = 0
    points = np.zeros((len(rows), 2))
    points[:, :count] = solver.fit_transform(rows)
    return points.tolist(), [float(one) for one in solver.explained_variance_ratio_]


def umap_of(
    data: DataContext, ids: tuple[int, ...], rows: Float[np.ndarray, "N D"], wait: float
) -> Points | None:
    """The points by UMAP once they are there; the first request for them begins to compute."""
    running = data.umap
    if running is None or (running[0] != ids and running[1].done()):
        running = data.umap = (ids, Future())
        Thread(target=run_umap, args=(rows, running[1]), daemon=True).start()
    if running[0] != ids:
        return None  # one at a time: those of the images before are being computed
    try:
        return running[1].result(timeout=wait)
    except NotYet:
        return None


def run_umap(rows: Float[np.ndarray, "N D"], found: "Future[Points]") -> None:
    try:
        found.set_result(umap_points(rows))
    except Exception as error:
        logger.exception("UMAP failed")
        found.set_exception(UserError(f"UMAP cannot place these images ({error}): use map pca"))


def umap_points(rows: Float[np.ndarray, "N D"]) -> Points:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of how many threads it takes
        from umap import UMAP

        solver = UMAP(
            n_components=2, n_neighbors=min(NEIGHBOURS, len(rows) - 1), random_state=0, n_jobs=1
        )
        points: Points = np.asarray(solver.fit_transform(rows), dtype=np.float64).tolist()
    return points
