"""nn.TransformerEncoder with norm_first=True and GELU, the shortest way to a ViT of the paper."""

import torch
from torch import nn


class ViTClassifier(nn.Module):
    def __init__(self, img_size=32, patch=8, d_model=48, nhead=4, layers=2, ffn=144, classes=5):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, d_model, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, d_model))
        self.pos = nn.Parameter(torch.zeros(1, 1 + (img_size // patch) ** 2, d_model))
        nn.init.trunc_normal_(self.cls, std=0.02)
        nn.init.trunc_normal_(self.pos, std=0.02)
        layer = nn.TransformerEncoderLayer(
            d_model,
            nhead,
            dim_feedforward=ffn,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.encoder = nn.TransformerEncoder(
            layer, layers, norm=nn.LayerNorm(d_model), enable_nested_tensor=False
        )
        self.fc = nn.Linear(d_model, classes)

    def forward(self, images):
        x = self.patch_embed(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.size(0), -1, -1), x], dim=1)
        x = self.encoder(x + self.pos)
        return self.fc(x[:, 0])
