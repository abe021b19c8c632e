"""Which cases of a parametrised test `make test` runs: a few that differ in as much as possible.

    @pytest.mark.sampled(3)
    @pytest.mark.parametrize("precision", PRECISIONS)
    @pytest.mark.parametrize("model", MODELS)

The other cases are marked slow, and `make test-all` runs all of them.
"""

from collections.abc import Hashable, Mapping, Sequence
from itertools import groupby

import pytest


def mark_others_slow(items: Sequence[pytest.Item]) -> None:
    """Leave as many cases of each sampled test as its mark says."""
    parametrised = [one for one in items if isinstance(one, pytest.Function)]
    for _, group in groupby(parametrised, key=lambda one: (one.parent, one.originalname)):
        cases = list(group)
        mark = cases[0].get_closest_marker("sampled")
        if mark is None or not hasattr(cases[0], "callspec"):
            continue
        able = [one for one in cases if one.get_closest_marker("slow") is None]
        values = [one.callspec.indices for one in able]
        chosen = differing(values, mark.args[0])
        for number, case in enumerate(able):
            if number not in chosen:
                case.add_marker(pytest.mark.slow)


def differing(cases: Sequence[Mapping[str, Hashable]], count: int) -> set[int]:
    """The numbers of so many cases: each has as many values as possible that none before has, and
    is far from those.

    >>> pairs = [{"model": model, "size": size} for model in "abc" for size in (1, 2, 3)]
    >>> [tuple(pairs[number].values()) for number in sorted(differing(pairs, 3))]
    [('a', 1), ('b', 2), ('c', 3)]
    """
    chosen: set[int] = set()
    seen: set[tuple[str, Hashable]] = set()
    while len(chosen) < min(count, len(cases)):
        left = [number for number in range(len(cases)) if number not in chosen]
        best = max(
            left,
            key=lambda number: (
                len({*cases[number].items()} - seen),
                min((abs(number - other) for other in chosen), default=0),
            ),
        )
        chosen.add(best)
        seen |= {*cases[best].items()}
    return chosen
