"""No class token: patches by nn.Unfold, the mean of all tokens, the norm inside the head."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.c_attn(x).split(c, dim=2)
        q, k, v = (y.view(b, t, self.n_head, c // self.n_head).transpose(1, 2) for y in (q, k, v))
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        y = y.transpose(1, 2).contiguous().view(b, t, c)
        return self.c_proj(y)


class Block(nn.Module):
    def __init__(self, width, n_head, expand=2):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, n_head)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, expand * width)
        self.c_out = nn.Linear(expand * width, width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        h = nn.functional.gelu(self.c_fc(self.ln_2(x)))
        x = x + self.c_out(h)
        return x


class PatchTransformer(nn.Module):
    def __init__(self, resolution=32, patch=8, width=40, n_head=5, n_layer=2, n_class=10):
        super().__init__()
        self.unfold = nn.Unfold(kernel_size=patch, stride=patch)
        self.wpe = nn.Parameter(torch.randn((resolution // patch) ** 2, width) * 0.02)
        self.wte = nn.Linear(3 * patch**2, width)
        self.h = nn.ModuleList([Block(width, n_head) for _ in range(n_layer)])
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, n_class))

    def forward(self, images):
        patches = self.unfold(images).transpose(1, 2)
        x = self.wte(patches) + self.wpe
        for block in self.h:
            x = block(x)
        return self.head(x.mean(dim=1))
