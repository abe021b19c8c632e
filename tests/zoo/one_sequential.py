"""One big nn.Sequential: residuals around flat lists, positions before the class token, no bias."""

import torch
from torch import nn


class Add(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.f = nn.Sequential(*layers)

    def forward(self, x):
        return x + self.f(x)


class Patches(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, images):
        p = self.p
        x = images.unfold(2, p, p).unfold(3, p, p)  # batch, channels, rows, columns, p, p
        return x.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


class Positions(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.table = nn.Parameter(torch.randn(n, d) / d**0.5)

    def forward(self, x):
        return x + self.table


class Prepend(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.token = nn.Parameter(torch.randn(d) / d**0.5)

    def forward(self, x):
        token = self.token.expand(x.shape[0], 1, -1)
        return torch.cat([token, x], 1)


class Attend(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.wq = nn.Linear(d, d, bias=False)
        self.wk = nn.Linear(d, d, bias=False)
        self.wv = nn.Linear(d, d, bias=False)
        self.wo = nn.Linear(d, d)

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (self.h, -1)) for w in (self.wq, self.wk, self.wv))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
        y = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)
        return self.wo(y.flatten(2))


class First(nn.Module):
    def forward(self, x):
        return x[:, 0]


class ViT(nn.Sequential):
    def __init__(self, side=32, p=8, d=32, h=2, layers=2, f=96, classes=4):
        blocks = []
        for _ in range(layers):
            blocks.append(Add(nn.LayerNorm(d), Attend(d, h)))
            blocks.append(Add(nn.LayerNorm(d), nn.Linear(d, f), nn.GELU(), nn.Linear(f, d)))
        super().__init__(
            Patches(p),
            nn.Linear(3 * p * p, d),
            Positions((side // p) ** 2, d),
            Prepend(d),
            *blocks,
            nn.LayerNorm(d),
            First(),
            nn.Linear(d, classes),
        )
