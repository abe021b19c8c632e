"""Numbers that a config may have: counts are counts, rates are rates, and neither is absurd."""

from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.layout import Sides, height_and_width

# Far beyond anything that was ever built; above it a config is a mistake, or wants to do harm.
MOST = {
    "dim": 2**17, "depth": 2**10, "heads": 2**12, "dim_head": 2**17, "mlp_dim": 2**20,
    "patch_size": 2**10, "channels": 2**12, "num_classes": 2**24, "registers": 2**12,
    "dims": 2**17, "widths": 2**17, "depths": 2**10,
}  # fmt: skip
MOST_ELSE = 2**20
MOST_FACTOR = 2**8
MOST_PIXELS = 2**14  # a side
MOST_COMPUTED = 2**27  # values of a table that no checkpoint brings: 1 GB in float64


def check_counts(config: Any, *names: str, least: int) -> None:
    """Each is None, or between `least` and what was ever built; of a tuple, each number."""
    for name in names:
        value = getattr(config, name)
        if value is None:
            continue
        numbers = value if isinstance(value, tuple) else (value,)
        if min(numbers, default=least) < least:
            raise UserError(f"{name} must be at least {least}, got {value}")
        if max(numbers, default=least) > MOST.get(name, MOST_ELSE):
            raise UserError(f"{name} must be at most {MOST.get(name, MOST_ELSE)}, got {value}")


def check_factors(config: Any, *names: str) -> None:
    for name in names:
        if not 0 < getattr(config, name) <= MOST_FACTOR:
            raise UserError(
                f"{name} must be above 0 and at most {MOST_FACTOR}, got {getattr(config, name)}"
            )


def check_rates(config: Any, *names: str) -> None:
    for name in names:
        rate = getattr(config, name)
        if rate is not None and not 0 <= rate < 1:
            raise UserError(f"{name} must be in [0, 1), got {rate}")


def check_sides(image_size: tuple[int, int]) -> None:
    if min(image_size) < 1 or max(image_size) > MOST_PIXELS:
        raise UserError(f"image_size must be 1 to {MOST_PIXELS} pixels a side, got {image_size}")


def check_eps(eps: float) -> None:
    if not eps > 0:
        raise UserError(f"norm_eps must be above 0, got {eps}")


def check_computed(values: int, what: str) -> None:
    """A table that is computed, not loaded, must fit into memory."""
    if values > MOST_COMPUTED:
        raise UserError(f"{what} would compute a table of {values:,} values: use smaller images")


def check_multiple(image_size: tuple[int, int], steps: Sides, what: str) -> None:
    """Both sides are whole numbers of steps."""
    for side, step in zip(image_size, height_and_width(steps), strict=True):
        if side % step:
            low = side // step * step
            wish = f"use {low} or {low + step}" if low else f"use {step}"
            raise UserError(f"image side {side} is not a multiple of {what} {step}: {wish}")
