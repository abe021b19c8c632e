"""torchvision's manner: patches by convolution, nn.MultiheadAttention, positions in the encoder."""

import torch
from torch import nn


class MLPBlock(nn.Module):
    def __init__(self, hidden_dim, mlp_dim):
        super().__init__()
        self.linear_1 = nn.Linear(hidden_dim, mlp_dim)
        self.act = nn.GELU()
        self.linear_2 = nn.Linear(mlp_dim, hidden_dim)

    def forward(self, x):
        return self.linear_2(self.act(self.linear_1(x)))


class EncoderBlock(nn.Module):
    def __init__(self, num_heads, hidden_dim, mlp_dim, dropout):
        super().__init__()
        self.ln_attention = nn.LayerNorm(hidden_dim, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(hidden_dim, num_heads, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.ln_mlp = nn.LayerNorm(hidden_dim, eps=1e-6)
        self.mlp = MLPBlock(hidden_dim, mlp_dim)

    def forward(self, tokens):
        y = self.ln_attention(tokens)
        y, _ = self.self_attention(y, y, y, need_weights=False)
        tokens = tokens + self.dropout(y)
        y = self.ln_mlp(tokens)
        y = self.mlp(y)
        return tokens + self.dropout(y)


class Encoder(nn.Module):
    def __init__(self, seq_length, num_layers, num_heads, hidden_dim, mlp_dim, dropout):
        super().__init__()
        self.pos_embedding = nn.Parameter(0.02 * torch.randn(seq_length, hidden_dim))
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            EncoderBlock(num_heads, hidden_dim, mlp_dim, dropout) for _ in range(num_layers)
        )
        self.ln = nn.LayerNorm(hidden_dim, eps=1e-6)

    def forward(self, tokens):
        tokens = self.dropout(tokens + self.pos_embedding)
        for layer in self.layers:
            tokens = layer(tokens)
        return self.ln(tokens)


class VisionTransformer(nn.Module):
    def __init__(
        self,
        image_size=32,
        patch_size=8,
        num_layers=3,
        num_heads=3,
        hidden_dim=48,
        mlp_dim=96,
        num_classes=7,
        dropout=0.1,
    ):
        super().__init__()
        self.conv_proj = nn.Conv2d(3, hidden_dim, kernel_size=patch_size, stride=patch_size)
        self.class_token = nn.Parameter(torch.zeros(hidden_dim))
        seq_length = (image_size // patch_size) ** 2 + 1  # the class token is one more
        self.encoder = Encoder(seq_length, num_layers, num_heads, hidden_dim, mlp_dim, dropout)
        self.head = nn.Linear(hidden_dim, num_classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, images):
        x = self.conv_proj(images)
        x = x.flatten(2).permute(0, 2, 1)
        token = self.class_token.expand(x.shape[0], 1, -1)
        x = torch.cat([token, x], dim=1)
        x = self.encoder(x)
        return self.head(x[:, 0])
