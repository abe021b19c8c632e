"""All claims by name, and the record that lists them."""

from dataclasses import dataclass
from typing import Any

from vitrail.core.errors import UserError, nearest
from vitrail.core.html_text import html_table
from vitrail.tasks.claims import (
    attention_distance,
    cost,
    data_scale,
    equivariance,
    few_shot,
    hybrid,
    masked_patch,
    masks,
    mobile,
    pooling,
    positions,
    public_weights,
    resolution,
)
from vitrail.tasks.claims.claim import Claim

ALL = (
    data_scale.CLAIM,
    hybrid.CLAIM,
    positions.CLAIM,
    attention_distance.CLAIM,
    resolution.CLAIM,
    pooling.CLAIM,
    masked_patch.CLAIM,
    few_shot.CLAIM,
    cost.CLAIM,
    mobile.CLAIM,
    masks.CLAIM,
    equivariance.CLAIM,
    *public_weights.CLAIMS,
)
CLAIMS = {claim.name: claim for claim in ALL}


def find_claim(name: str) -> Claim:
    """The claim of that name."""
    if name not in CLAIMS:
        raise UserError(f"unknown claim {name!r}, {nearest(name, CLAIMS)}")
    return CLAIMS[name]


@dataclass(frozen=True, repr=False)
class ClaimList:
    """The claims that `vitrail.reproduce` knows."""

    claims: tuple[Claim, ...] = ALL

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON: what `vitrail reproduce --json` prints."""
        return {"claims": [claim.facts() for claim in self.claims]}

    def __repr__(self) -> str:
        return f"ClaimList({', '.join(claim.name for claim in self.claims)})"

    def _repr_html_(self) -> str:
        return html_table("Claims", {claim.name: claim.sentence for claim in self.claims})
