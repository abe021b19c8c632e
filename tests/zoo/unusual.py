"""More hand-written ViTs, each with habits that the ten styles do not have."""

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn


class OwnNorm(nn.Module):
    """A LayerNorm of one's own, with gamma and beta."""

    def __init__(self, width):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))
        self.beta = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        return (x - mean) / torch.sqrt(variance + 1e-6) * self.gamma + self.beta


class MatrixBlock(nn.Module):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.parts = heads
        self.first_norm, self.second_norm = OwnNorm(width), OwnNorm(width)
        for name in ("q", "k", "v", "o"):
            setattr(self, f"W_{name}", nn.Parameter(torch.randn(width, width) / width**0.5))
            setattr(self, f"b_{name}", nn.Parameter(torch.zeros(width)))
        self.W_1 = nn.Parameter(torch.randn(width, hidden) / width**0.5)
        self.b_1 = nn.Parameter(torch.zeros(hidden))
        self.W_2 = nn.Parameter(torch.randn(hidden, width) / hidden**0.5)
        self.b_2 = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        y = self.first_norm(x)
        q, k, v = (
            rearrange(y @ w + b, "b n (h d) -> b h n d", h=self.parts)
            for w, b in ((self.W_q, self.b_q), (self.W_k, self.b_k), (self.W_v, self.b_v))
        )
        weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
        y = rearrange(weights @ v, "b h n d -> b n (h d)") @ self.W_o + self.b_o
        x = x + y
        y = self.second_norm(x) @ self.W_1 + self.b_1
        return x + (y * torch.sigmoid(1.702 * y)) @ self.W_2 + self.b_2


class Matrices(nn.Module):
    """Parameters instead of layers, used as x @ w; nobody knows the heads; CLIP's GELU."""

    def __init__(self, width=24, heads=3, hidden=40):
        super().__init__()
        self.embed = nn.Conv2d(3, width, 8, 8, bias=False)
        self.cls = nn.Parameter(torch.randn(1, 1, width))
        self.pos = nn.Parameter(torch.randn(1, 17, width))
        self.stack = nn.ModuleList(MatrixBlock(width, heads, hidden) for _ in range(2))
        self.last_norm = OwnNorm(width)
        self.readout = nn.Linear(width, 5, bias=False)

    def forward(self, images):
        x = self.embed(images).flatten(2).mT
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        for block in self.stack:
            x = block(x)
        return {"logits": self.readout(self.last_norm(x)[:, 0])}


class SequenceFirst(nn.Module):
    """nn.TransformerEncoder with the sequence first, its layer kept beside it, the class token
    last, and images that are not square."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.image_size = (32, 48)
        self.patchify = nn.Conv2d(3, width, 8, 8)
        self.place = nn.Parameter(torch.randn(25, width))
        self.summary = nn.Parameter(torch.randn(width))
        self.encoder_layer = nn.TransformerEncoderLayer(width, heads, 48, activation="gelu")
        self.encoder = nn.TransformerEncoder(self.encoder_layer, 3, enable_nested_tensor=False)
        self.out = nn.Linear(width, 6)

    def forward(self, images):
        x = self.patchify(images).flatten(2).permute(2, 0, 1)
        x = torch.cat([x, self.summary.expand(1, x.shape[1], -1)]) + self.place[:, None]
        return self.out(self.encoder(x)[-1])


class HeadsOutside(nn.Module):
    """qkv with the heads outermost, 1x1 convolutions for an MLP, norms without weights, LayerScale,
    sines for positions in a buffer that no file has."""

    def __init__(self, width=32, heads=4, depth=2):
        super().__init__()
        self.heads = heads
        self.patch = nn.Linear(3 * 64, width)
        self.token = nn.Embedding(1, width)
        angle = torch.arange(17)[:, None] / 10_000 ** (torch.arange(0, width, 2) / width)
        table = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)
        self.register_buffer("pe", table[None], persistent=False)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "qkv": nn.Linear(width, 3 * width),
                    "proj": nn.Linear(width, width, bias=False),
                    "up": nn.Conv1d(width, 2 * width, 1),
                    "down": nn.Conv1d(2 * width, width, 1),
                    "scales": nn.ParameterList([torch.ones(width) * 0.1, torch.ones(width) * 0.1]),
                }
            )
            for _ in range(depth)
        )
        self.fc = nn.Linear(width, 3)

    def forward(self, images):
        x = rearrange(images, "b c (h p) (w q) -> b (h w) (q p c)", p=8, q=8)
        x = torch.cat([self.token.weight.expand(len(x), 1, -1), self.patch(x)], 1) + self.pe
        for block in self.blocks:
            y = block["qkv"](F.layer_norm(x, x.shape[-1:]))
            q, k, v = rearrange(y, "b n (h t d) -> t b h n d", t=3, h=self.heads)
            y = F.scaled_dot_product_attention(q, k, v)
            x = x + block["proj"](rearrange(y, "b h n d -> b n (h d)")) * block["scales"][0]
            y = block["up"](F.layer_norm(x, x.shape[-1:]).mT)
            x = x + block["down"](F.gelu(y, approximate="tanh")).mT * block["scales"][1]
        return self.fc(x[:, 0])


class ManyLists(nn.Module):
    """A list for each kind of layer, keys and values in one, positions in an nn.Embedding, grey
    images, mean of the patches without the class token."""

    def __init__(self, width=24, heads=2, depth=3):
        super().__init__()
        self.n_heads = heads
        self.embed = nn.Linear(64, width)
        self.positions = nn.Embedding(16, width)
        self.before = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.query = nn.ModuleList(nn.Linear(width, 16) for _ in range(depth))
        self.kv = nn.ModuleList(nn.Linear(width, 32) for _ in range(depth))
        self.joined = nn.ModuleList(nn.Linear(16, width) for _ in range(depth))
        self.after = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 48), nn.ReLU(), nn.Linear(48, width))
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.classes = nn.Linear(width, 4)

    def forward(self, images):
        x = rearrange(images, "b c (h p) (w q) -> b (h w) (c q p)", p=8, q=8)
        x = self.embed(x) + self.positions.weight
        for before, query, kv, joined, after, mlp in zip(
            self.before, self.query, self.kv, self.joined, self.after, self.mlps, strict=True
        ):
            y = before(x)
            parts = (query(y), *kv(y).chunk(2, -1))
            q, k, v = (rearrange(p, "b n (h d) -> b h n d", h=self.n_heads) for p in parts)
            y = F.scaled_dot_product_attention(q, k, v)
            x = x + joined(rearrange(y, "b h n d -> b n (h d)"))
            x = x + mlp(after(x))
        return self.classes(self.norm(x).mean(1))


class WithBuffers(nn.Module):
    """Places in a buffer of whole numbers, and a mask in every block that masks nothing."""

    def __init__(self, width=16, heads=2, depth=2):
        super().__init__()
        self.proj = nn.Conv2d(3, width, 8, 8)
        self.cls = nn.Parameter(torch.randn(1, 1, width))
        self.position = nn.Embedding(17, width)
        self.register_buffer("position_ids", torch.arange(17))
        self.register_buffer("mask", torch.zeros(17, 17))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 24, 0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 4)

    def forward(self, images):
        x = self.proj(images).flatten(2).mT
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.position(self.position_ids)
        for layer in self.layers:
            x = layer(x, src_mask=self.mask)
        return self.head(self.norm(x)[:, 0])


class ColumnsFirst(nn.Module):
    """Patches column by column, q, k and v split as (d h) and joined as (d h), and images that are
    not square."""

    def __init__(self, width=24, heads=3, depth=2):
        super().__init__()
        self.heads, self.image_size = heads, (16, 24)
        self.conv = nn.Conv2d(3, width, 8, 8)
        self.cls = nn.Parameter(torch.randn(1, 1, width))
        self.pos = nn.Parameter(torch.randn(1, 7, width))
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "ln1": nn.LayerNorm(width),
                    "query": nn.Linear(width, width),
                    "key": nn.Linear(width, width),
                    "value": nn.Linear(width, width),
                    "out": nn.Linear(width, width),
                    "ln2": nn.LayerNorm(width),
                    "fc1": nn.Linear(width, 40),
                    "fc2": nn.Linear(40, width),
                }
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 5)

    def forward(self, images):
        x = rearrange(self.conv(images), "b d h w -> b (w h) d")
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        for block in self.blocks:
            y = block["ln1"](x)
            parts = (block[name](y) for name in ("query", "key", "value"))
            q, k, v = (rearrange(p, "b n (d h) -> b h n d", h=self.heads) for p in parts)
            y = F.scaled_dot_product_attention(q, k, v)
            x = x + block["out"](rearrange(y, "b h n d -> b n (d h)"))
            x = x + block["fc2"](F.gelu(block["fc1"](block["ln2"](x))))
        return self.head(self.norm(x)[:, 0])


class Gated(nn.Module):
    """An MLP of three matrices, as language models have it: w2(silu(w1 x) * w3 x); one qkv layer
    whose heads lie innermost, patches column by column, and no table of positions."""

    def __init__(self, width=16, heads=2, depth=2):
        super().__init__()
        self.n_heads, self.img_size = heads, 32
        self.patch = nn.Linear(3 * 64, width)
        self.cls_token = nn.Parameter(torch.randn(1, 1, width))
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "ln1": nn.LayerNorm(width),
                    "qkv": nn.Linear(width, 3 * width),
                    "proj": nn.Linear(width, width),
                    "ln2": nn.LayerNorm(width),
                    "w1": nn.Linear(width, 24, bias=False),
                    "w2": nn.Linear(24, width, bias=False),
                    "w3": nn.Linear(width, 24, bias=False),
                }
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 5)

    def forward(self, images):
        x = rearrange(images, "b c (h p) (w q) -> b (w h) (c p q)", p=8, q=8)
        x = self.patch(x)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1)
        for block in self.layers:
            y = block["qkv"](block["ln1"](x))
            q, k, v = rearrange(y, "b n (d h t) -> t b h n d", t=3, h=self.n_heads)
            y = F.scaled_dot_product_attention(q, k, v)
            x = x + block["proj"](rearrange(y, "b h n d -> b n (h d)"))
            y = block["ln2"](x)
            x = x + block["w2"](F.silu(block["w1"](y)) * block["w3"](y))
        return self.head(self.norm(x)[:, 0])


UNUSUAL = (
    Matrices, SequenceFirst, HeadsOutside, ManyLists, WithBuffers, ColumnsFirst, Gated
)  # fmt: skip


def build(kind: type[nn.Module], seed: int = 0) -> nn.Module:
    """One of them in eval mode, with no parameter left at a zero or a one."""
    torch.manual_seed(seed)
    model = kind().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model
