"""One small module for each head: three Linear layers, and a ModuleList of such heads."""

import torch
import torch.nn.functional as F
from torch import nn


class Head(nn.Module):
    def __init__(self, d_model, d_head):
        super().__init__()
        self.d_head = d_head
        self.q = nn.Linear(d_model, d_head)
        self.k = nn.Linear(d_model, d_head)
        self.v = nn.Linear(d_model, d_head)

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        scores = q @ k.transpose(1, 2) / self.d_head**0.5
        return F.softmax(scores, dim=-1) @ v


class MultiHead(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.heads = nn.ModuleList([Head(d_model, d_model // n_heads) for _ in range(n_heads)])
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.out(torch.cat([head(x) for head in self.heads], dim=-1))


class Block(nn.Module):
    def __init__(self, d_model, n_heads, d_ff):
        super().__init__()
        self.ln1 = nn.LayerNorm(d_model)
        self.mha = MultiHead(d_model, n_heads)
        self.ln2 = nn.LayerNorm(d_model)
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.GELU(), nn.Linear(d_ff, d_model))

    def forward(self, x):
        x = x + self.mha(self.ln1(x))
        x = x + self.ff(self.ln2(x))
        return x


class MyViT(nn.Module):
    def __init__(self, img=32, patch=8, d_model=36, n_heads=3, d_ff=72, n_blocks=2, n_classes=10):
        super().__init__()
        self.patch = patch
        self.to_tokens = nn.Linear(3 * patch * patch, d_model)
        self.class_token = nn.Parameter(torch.rand(1, d_model))
        self.positions = nn.Parameter(torch.rand((img // patch) ** 2 + 1, d_model))
        self.blocks = nn.ModuleList([Block(d_model, n_heads, d_ff) for _ in range(n_blocks)])
        self.ln = nn.LayerNorm(d_model)
        self.classify = nn.Linear(d_model, n_classes)

    def patchify(self, images):
        b, c, h, w = images.shape
        p = self.patch
        x = images.reshape(b, c, h // p, p, w // p, p)
        return x.permute(0, 2, 4, 1, 3, 5).reshape(b, (h // p) * (w // p), c * p * p)

    def forward(self, images):
        tokens = self.to_tokens(self.patchify(images))
        cls = self.class_token.expand(len(images), 1, -1)
        tokens = torch.cat([cls, tokens], dim=1)
        tokens = tokens + self.positions
        for block in self.blocks:
            tokens = block(tokens)
        return self.classify(self.ln(tokens)[:, 0])
