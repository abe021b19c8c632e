"""nn.TransformerEncoder as it comes: norm after each residual, ReLU, no final norm."""

import torch
from torch import nn


class ImageTransformer(nn.Module):
    def __init__(self, size=32, patch=8, width=32, heads=4, depth=2, hidden=64, classes=10):
        super().__init__()
        self.embedding = nn.Conv2d(3, width, kernel_size=patch, stride=patch)
        self.cls_embedding = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.position_embedding = nn.Parameter(
            torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02
        )
        block = nn.TransformerEncoderLayer(width, heads, hidden, dropout=0.1, batch_first=True)
        self.transformer = nn.TransformerEncoder(block, depth)
        self.classifier = nn.Linear(width, classes)

    def forward(self, images):
        patches = self.embedding(images).flatten(start_dim=2).mT
        cls = self.cls_embedding.repeat(images.shape[0], 1, 1)
        tokens = torch.cat((cls, patches), dim=1) + self.position_embedding
        tokens = self.transformer(tokens)
        return self.classifier(tokens[:, 0, :])
