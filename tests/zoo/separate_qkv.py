"""Separate query, key and value layers and a config, as tutorials about transformers have them."""

import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Settings:
    image_size: int = 32
    patch_size: int = 4
    hidden_size: int = 48
    num_layers: int = 2
    num_heads: int = 4
    intermediate_size: int = 192
    num_labels: int = 10
    layer_norm_eps: float = 1e-12


class SelfAttention(nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.num_heads = settings.num_heads
        self.head_size = settings.hidden_size // settings.num_heads
        self.query = nn.Linear(settings.hidden_size, settings.hidden_size)
        self.key = nn.Linear(settings.hidden_size, settings.hidden_size)
        self.value = nn.Linear(settings.hidden_size, settings.hidden_size)
        self.dense = nn.Linear(settings.hidden_size, settings.hidden_size)

    def transpose_for_scores(self, x):
        x = x.view(x.size(0), x.size(1), self.num_heads, self.head_size)
        return x.permute(0, 2, 1, 3)

    def forward(self, hidden_states):
        q = self.transpose_for_scores(self.query(hidden_states))
        k = self.transpose_for_scores(self.key(hidden_states))
        v = self.transpose_for_scores(self.value(hidden_states))
        scores = torch.matmul(q, k.transpose(-1, -2))
        scores = scores / math.sqrt(self.head_size)
        probs = nn.functional.softmax(scores, dim=-1)
        context = torch.matmul(probs, v)
        context = context.permute(0, 2, 1, 3).contiguous()
        context = context.view(context.size(0), context.size(1), -1)
        return self.dense(context)


class Layer(nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.layernorm_before = nn.LayerNorm(settings.hidden_size, eps=settings.layer_norm_eps)
        self.attention = SelfAttention(settings)
        self.layernorm_after = nn.LayerNorm(settings.hidden_size, eps=settings.layer_norm_eps)
        self.intermediate = nn.Linear(settings.hidden_size, settings.intermediate_size)
        self.output = nn.Linear(settings.intermediate_size, settings.hidden_size)

    def forward(self, hidden_states):
        hidden_states = hidden_states + self.attention(self.layernorm_before(hidden_states))
        x = self.layernorm_after(hidden_states)
        x = nn.functional.gelu(self.intermediate(x))
        return hidden_states + self.output(x)


class Embeddings(nn.Module):
    def __init__(self, settings):
        super().__init__()
        side, hidden = settings.patch_size, settings.hidden_size
        patches = (settings.image_size // side) ** 2
        self.projection = nn.Conv2d(3, hidden, kernel_size=side, stride=side)
        self.cls_token = nn.Parameter(torch.randn(1, 1, hidden))
        self.position_embeddings = nn.Parameter(torch.randn(1, patches + 1, hidden))

    def forward(self, pixel_values):
        x = self.projection(pixel_values).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.size(0), -1, -1), x), dim=1)
        return x + self.position_embeddings


class ViTForImageClassification(nn.Module):
    def __init__(self, settings=None):
        super().__init__()
        settings = settings or Settings()
        self.embeddings = Embeddings(settings)
        self.layers = nn.ModuleList([Layer(settings) for _ in range(settings.num_layers)])
        self.layernorm = nn.LayerNorm(settings.hidden_size, eps=settings.layer_norm_eps)
        self.classifier = nn.Linear(settings.hidden_size, settings.num_labels)

    def forward(self, pixel_values):
        hidden_states = self.embeddings(pixel_values)
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return self.classifier(self.layernorm(hidden_states)[:, 0])
