"""`positions`: none, 1-D, 2-D and relative position embeddings, and what a 1-D table learns."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vitrail.evaluation.findings import Finding
from vitrail.explanation.positions import position_similarity, position_table
from vitrail.tasks.claims.accuracies import accuracy_bars, accuracy_table, ahead, alike
from vitrail.tasks.claims.claim import Citation, Claim, Drawing, Evidence, Setting, Stage
from vitrail.tasks.claims.lab import Lab
from vitrail.tasks.claims.small_models import vit

KINDS = {"none": "none", "1-D": "learned", "2-D": "learned2d", "relative": "relative"}
KNOWING = tuple(KINDS)[1:]
MARGIN = 0.03  # of accuracy, between ways to encode positions
PLACEMENTS = 999  # random ones
Similarity = NDArray[np.float64]  # (N, N)


def stages(setting: Setting) -> Sequence[Stage]:
    return [setting.plan([vit(setting, name, positions=kind) for name, kind in KINDS.items()])]


def judge(lab: Lab) -> Evidence:
    similarity = lab.once("similarity", lambda: similarities(lab))
    middle = len(similarity["seeds"][0][0]) // 2
    findings = [ahead(lab, name, "none", f"{name} positions are ahead of none") for name in KNOWING]
    for name in KNOWING[1:]:
        sentence = f"1-D and {name} positions are equally good"
        findings.append(alike(lab.right("1-D"), lab.right(name), sentence, margin=MARGIN))
    findings.append(rows_and_columns([np.array(one) for one in similarity["seeds"]]))
    grid = np.array(similarity["seeds"][0])[middle].reshape(similarity["grid"])
    tile = Drawing(
        title="Similarity of the middle patch's position to all others",
        kind="grid",
        grid=grid.tolist(),
        note="1-D positions of the first seed: cosine, as in figure 7 of the paper",
    )
    return Evidence(
        findings=tuple(findings),
        tables=(accuracy_table(lab, tuple(KINDS)),),
        drawings=(accuracy_bars(lab, tuple(KINDS)), tile),
    )


def similarities(lab: Lab) -> dict[str, object]:
    """The cosine of every two positions of the 1-D table, for each seed."""
    found, grid = [], (0, 0)
    for cell in lab.cells("1-D"):
        model = lab.load(cell.name)
        layout = model.config.layout
        table = position_table(model, layout)
        assert table is not None
        grid = layout.grid
        cells = grid[0] * grid[1]
        found.append(position_similarity(table).reshape(cells, cells).round(decimals=5).tolist())
    return {"grid": grid, "seeds": found}


def rows_and_columns(similarity: Sequence[Similarity]) -> Finding:
    """That positions in one row or column are more alike than others as far apart, against random
    placements of the patches."""
    generator = np.random.default_rng(0)
    side = round(len(similarity[0]) ** 0.5)
    excess = float(np.mean([excess_on_axes(one, side) for one in similarity]))
    drawn = []
    for _ in range(PLACEMENTS):
        order = generator.permutation(side * side)
        drawn.append(np.mean([excess_on_axes(one[order][:, order], side) for one in similarity]))
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Finding(
        sentence="positions in the same row or column are more alike than others as far apart",
        estimate=excess,
        interval=(excess - float(high), excess - float(low)),
        above=0.0,
        how=f"cosine, less that of 95 % of {PLACEMENTS} random placements of the patches",
    )


def excess_on_axes(similarity: Similarity, side: int) -> float:
    """How much more alike patches of one row or column are than others whose distance rounds to the
    same number of patches."""
    place = np.arange(side * side)
    down = np.abs(place[:, None] // side - place // side)
    across = np.abs(place[:, None] % side - place % side)
    distance = np.round(np.hypot(down, across)).astype(int)
    axis = (down == 0) ^ (across == 0)
    gains, counts = [], []
    for one in range(1, side):
        near = distance == one
        on, off = near & axis, near & (down > 0) & (across > 0)
        if on.any() and off.any():
            gains.append(similarity[on].mean() - similarity[off].mean())
            counts.append(int(on.sum()))
    return float(np.average(gains, weights=counts))


CLAIM = Claim(
    name="positions",
    sentence="Any position embedding is far ahead of none, it matters little whether it is 1-D, "
    "2-D or relative, and a 1-D table learns the rows and columns of the image.",
    citation=Citation(
        paper="An Image is Worth 16x16 Words",
        arxiv="2010.11929",
        where="appendix D.4, table 8; figure 7, centre",
    ),
    minutes=(15, 150),
    stages=stages,
    judge=judge,
)
