"""How alike two layers see images: linear centred kernel alignment (CKA).

Two layers are alike when the images that one finds alike the other finds alike too, whatever the
widths of the two, and however either is rotated or scaled (arXiv:1905.00414). It is the Hilbert-
Schmidt independence of two matrices of inner products, normalised; its unbiased estimate (Song et
al. 2012) is averaged over batches (arXiv:2010.15327), so that its mean does not depend on how large
they are, and few images do not make everything look alike.
"""

import torch
from jaxtyping import Float
from torch import Tensor

MIN_IMAGES = 4  # images in a batch: the unbiased estimate divides by n (n - 3)


def gram(x: Float[Tensor, "n ..."]) -> Float[Tensor, "n n"]:
    """Inner products of every two images, over all that a layer says of them."""
    flat = x.flatten(1).double()
    return flat @ flat.mT


def hsic(k: Float[Tensor, "*L n n"], other: Float[Tensor, "*L n n"]) -> Float[Tensor, "*L"]:
    """The unbiased estimate of the Hilbert-Schmidt independence criterion."""
    n = k.shape[-1]
    off = 1 - torch.eye(n, dtype=k.dtype, device=k.device)
    k, other = k * off, other * off
    trace = (k * other.mT).sum(dim=(-2, -1))
    sums = k.sum(dim=(-2, -1)) * other.sum(dim=(-2, -1)) / ((n - 1) * (n - 2))
    rows = 2 / (n - 2) * (k.sum(dim=-2) * other.sum(dim=-1)).sum(dim=-1)
    return (trace + sums - rows) / (n * (n - 3))


class CKA:
    """CKA between all layers, from one batch after another; no activation is kept.

    >>> one = CKA()
    >>> one.add({"first": torch.randn(8, 5), "second": torch.randn(8, 3, 3)})
    >>> one.matrix().shape
    torch.Size([2, 2])
    """

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.images = self.left_out = 0
        self.total: Tensor | None = None

    def add(self, layers: dict[str, Float[Tensor, "n ..."]]) -> None:
        """What each layer says of the images of one batch."""
        self.add_grams({name: gram(x) for name, x in layers.items()})

    def add_grams(self, grams: dict[str, Float[Tensor, "n n"]]) -> None:
        """The same, where the inner products are known already."""
        self.names = tuple(grams)
        every = torch.stack(list(grams.values()))
        if every.shape[-1] < MIN_IMAGES:
            self.left_out += every.shape[-1]
            return
        found = hsic(every[:, None], every[None])
        self.total = found if self.total is None else self.total + found
        self.images += every.shape[-1]

    def matrix(self) -> Float[Tensor, "L L"] | None:
        """1 where two layers agree wholly, about 0 where they have nothing to do with each other;
        None where no batch had enough images."""
        if self.total is None:
            return None
        own = self.total.diagonal().clamp(min=0).sqrt()
        return self.total / (own[:, None] * own).clamp(min=torch.finfo(own.dtype).tiny)
