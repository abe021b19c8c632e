"""한국어 강좌의 방식: einops 로 쓴 PatchEmbedding, MultiHeadAttention, 평균을 읽는 분류 헤드."""

import torch
from einops import rearrange, repeat
from einops.layers.torch import Rearrange, Reduce
from torch import nn


class PatchEmbedding(nn.Module):
    """이미지를 패치로 나누고 각 패치를 임베딩 벡터로 바꾼다."""

    def __init__(self, in_channels, patch_size, emb_size, img_size):
        super().__init__()
        # 합성곱의 커널과 보폭을 패치 크기로 두면 패치마다 선형 변환을 하는 것과 같다
        self.projection = nn.Sequential(
            nn.Conv2d(in_channels, emb_size, kernel_size=patch_size, stride=patch_size),
            Rearrange("b e h w -> b (h w) e"),
        )
        self.cls_token = nn.Parameter(torch.randn(1, 1, emb_size))
        self.positions = nn.Parameter(torch.randn((img_size // patch_size) ** 2 + 1, emb_size))

    def forward(self, images):
        x = self.projection(images)
        cls_tokens = repeat(self.cls_token, "1 1 e -> b 1 e", b=images.shape[0])
        x = torch.cat([cls_tokens, x], dim=1)  # 클래스 토큰은 맨 앞에 둔다
        x = x + self.positions  # 위치 정보를 더한다
        return x


class MultiHeadAttention(nn.Module):
    def __init__(self, emb_size, num_heads):
        super().__init__()
        self.emb_size = emb_size
        self.num_heads = num_heads
        self.queries = nn.Linear(emb_size, emb_size)
        self.keys = nn.Linear(emb_size, emb_size)
        self.values = nn.Linear(emb_size, emb_size)
        self.projection = nn.Linear(emb_size, emb_size)

    def forward(self, x):
        # 임베딩 차원을 헤드의 수만큼 나눈다
        queries = rearrange(self.queries(x), "b n (h d) -> b h n d", h=self.num_heads)
        keys = rearrange(self.keys(x), "b n (h d) -> b h n d", h=self.num_heads)
        values = rearrange(self.values(x), "b n (h d) -> b h n d", h=self.num_heads)
        energy = torch.einsum("bhqd,bhkd->bhqk", queries, keys)
        scaling = (self.emb_size // self.num_heads) ** 0.5  # 헤드 하나의 차원
        attention = torch.softmax(energy / scaling, dim=-1)
        out = torch.einsum("bhqk,bhkd->bhqd", attention, values)
        out = rearrange(out, "b h n d -> b n (h d)")
        return self.projection(out)


class ResidualAdd(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, x):
        return x + self.fn(x)


class FeedForwardBlock(nn.Sequential):
    def __init__(self, emb_size, expansion):
        super().__init__(
            nn.Linear(emb_size, expansion * emb_size),
            nn.GELU(),
            nn.Linear(expansion * emb_size, emb_size),
        )


class TransformerEncoderBlock(nn.Sequential):
    def __init__(self, emb_size, num_heads, expansion):
        super().__init__(
            # 정규화, 어텐션, 잔차 연결
            ResidualAdd(
                nn.Sequential(nn.LayerNorm(emb_size), MultiHeadAttention(emb_size, num_heads))
            ),
            # 정규화, MLP, 잔차 연결
            ResidualAdd(
                nn.Sequential(nn.LayerNorm(emb_size), FeedForwardBlock(emb_size, expansion))
            ),
        )


class TransformerEncoder(nn.Sequential):
    def __init__(self, depth, emb_size, num_heads, expansion):
        super().__init__(
            *[TransformerEncoderBlock(emb_size, num_heads, expansion) for _ in range(depth)]
        )


class ClassificationHead(nn.Sequential):
    def __init__(self, emb_size, n_classes):
        super().__init__(
            Reduce("b n e -> b e", reduction="mean"),  # 모든 토큰의 평균
            nn.LayerNorm(emb_size),
            nn.Linear(emb_size, n_classes),
        )


class ViT(nn.Sequential):
    def __init__(
        self,
        in_channels=3,
        patch_size=8,
        emb_size=48,
        img_size=32,
        depth=2,
        num_heads=6,
        expansion=2,
        n_classes=10,
    ):
        super().__init__(
            PatchEmbedding(in_channels, patch_size, emb_size, img_size),
            TransformerEncoder(depth, emb_size, num_heads, expansion),
            ClassificationHead(emb_size, n_classes),
        )
