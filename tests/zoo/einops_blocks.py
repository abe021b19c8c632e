"""einops blocks: patches by Rearrange and Linear, wrappers for norm and residual, one qkv."""

import torch
from einops import rearrange, repeat
from einops.layers.torch import Rearrange
from torch import nn


class Residual(nn.Module):
    def __init__(self, branch):
        super().__init__()
        self.branch = branch

    def forward(self, x):
        return self.branch(x) + x


class Normed(nn.Module):
    def __init__(self, dim, layer):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.layer = layer

    def forward(self, x):
        return self.layer(self.norm(x))


class Attention(nn.Module):
    def __init__(self, dim, heads, dim_head):
        super().__init__()
        inner = heads * dim_head
        self.heads = heads
        self.scale = dim_head**-0.5
        self.to_qkv = nn.Linear(dim, inner * 3, bias=False)
        self.to_out = nn.Linear(inner, dim)

    def forward(self, x):
        q, k, v = rearrange(self.to_qkv(x), "b n (t h d) -> t b h n d", t=3, h=self.heads)
        scores = torch.einsum("b h i d, b h j d -> b h i j", q, k) * self.scale
        weights = scores.softmax(dim=-1)
        out = torch.einsum("b h i j, b h j d -> b h i d", weights, v)
        out = rearrange(out, "b h n d -> b n (h d)")
        return self.to_out(out)


class FeedForward(nn.Sequential):
    def __init__(self, dim, hidden):
        super().__init__(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))


class Transformer(nn.Module):
    def __init__(self, dim, depth, heads, dim_head, mlp_dim):
        super().__init__()
        self.layers = nn.ModuleList()
        for _ in range(depth):
            attention = Normed(dim, Attention(dim, heads, dim_head))
            mlp = Normed(dim, FeedForward(dim, mlp_dim))
            self.layers.append(nn.Sequential(Residual(attention), Residual(mlp)))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class ViT(nn.Module):
    def __init__(
        self,
        *,
        image_size=32,
        patch_size=8,
        num_classes=10,
        dim=64,
        depth=2,
        heads=4,
        mlp_dim=128,
        dim_head=16,
        channels=3,
    ):
        super().__init__()
        patches = (image_size // patch_size) ** 2
        self.to_patch_embedding = nn.Sequential(
            Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=patch_size, q=patch_size),
            nn.Linear(channels * patch_size**2, dim),
        )
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim))
        self.pos_embedding = nn.Parameter(torch.randn(1, patches + 1, dim))
        self.transformer = Transformer(dim, depth, heads, dim_head, mlp_dim)
        self.mlp_head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, num_classes))

    def forward(self, images):
        x = self.to_patch_embedding(images)
        cls = repeat(self.cls_token, "1 1 d -> b 1 d", b=len(x))
        x = torch.cat([cls, x], dim=1)
        x = x + self.pos_embedding
        x = self.transformer(x)
        return self.mlp_head(x[:, 0])
