"""Mistakes that learners make, each planted by changing the text of a style that is right."""

from dataclasses import dataclass
from pathlib import Path

from tests.zoo.styles import STYLES


@dataclass(frozen=True)
class Mistake:
    """`name`: what `vitrail check` calls it; `old` occurs in the style's file once."""

    name: str
    style: str
    old: str
    new: str

    def plant(self, folder: Path) -> str:
        """Write the wrong file; FILE:CLASS of it."""
        style = STYLES[self.style]
        text = style.path.read_text(encoding="utf-8")
        assert text.count(self.old) == 1, f"{self.old!r} in {style.path.name}"
        path = folder / f"{self.name}_{self.style}.py"
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")
        return f"{path}:{style.class_name}"

    def __str__(self) -> str:
        return f"{self.name}-{self.style}"


# The eleven mistakes, each in one style at least.
MISTAKES = (
    Mistake("scale_dim", "einops_blocks", "dim_head**-0.5", "dim**-0.5"),
    Mistake("scale_dim", "fused_qkv", "self.scale = head_dim**-0.5", "self.scale = dim**-0.5"),
    Mistake(
        "scale_dim",
        "korean_tutorial",
        "(self.emb_size // self.num_heads) ** 0.5",
        "self.emb_size ** 0.5",
    ),
    Mistake("no_scale", "heads_in_a_list", " / self.d_head**0.5", ""),
    Mistake(
        "no_scale",
        "mean_pooling",
        "scaled_dot_product_attention(q, k, v)",
        "scaled_dot_product_attention(q, k, v, scale=1.0)",
    ),
    Mistake("missing_attention_norm", "one_sequential", "nn.LayerNorm(d), Attend", "Attend"),
    Mistake(
        "missing_attention_norm",
        "multihead_attention",
        "y = self.ln_attention(tokens)",
        "y = tokens",
    ),
    Mistake("missing_mlp_norm", "fused_qkv", "self.mlp(self.norm2(x))", "self.mlp(x)"),
    Mistake("missing_mlp_norm", "mean_pooling", "self.c_fc(self.ln_2(x))", "self.c_fc(x)"),
    Mistake(
        "missing_final_norm",
        "encoder_pre_norm",
        "layer, layers, norm=nn.LayerNorm(d_model), enable",
        "layer, layers, enable",
    ),
    Mistake(
        "missing_final_norm",
        "separate_qkv",
        "self.layernorm(hidden_states)[:, 0]",
        "hidden_states[:, 0]",
    ),
    Mistake("softmax_axis", "einops_blocks", "softmax(dim=-1)", "softmax(dim=-2)"),
    Mistake("softmax_axis", "heads_in_a_list", "softmax(scores, dim=-1)", "softmax(scores, dim=1)"),
    Mistake(
        "head_order",
        "fused_qkv",
        "(attn @ v).transpose(1, 2).reshape(B, N, C)",
        "(attn @ v).reshape(B, N, C)",
    ),
    Mistake(
        "head_order",
        "separate_qkv",
        "        context = context.permute(0, 2, 1, 3).contiguous()\n"
        "        context = context.view(context.size(0), context.size(1), -1)\n",
        "        context = context.reshape(context.size(0), context.size(2), -1)\n",
    ),
    Mistake("class_token_last", "einops_blocks", "cat([cls, x], dim=1)", "cat([x, cls], dim=1)"),
    Mistake(
        "class_token_last",
        "encoder_post_norm",
        "torch.cat((cls, patches), dim=1)",
        "torch.cat((patches, cls), dim=1)",
    ),
    Mistake(
        "position_shift",
        "heads_in_a_list",
        "        tokens = torch.cat([cls, tokens], dim=1)\n"
        "        tokens = tokens + self.positions\n",
        "        tokens = tokens + self.positions[:-1]\n"
        "        tokens = torch.cat([cls, tokens], dim=1)\n",
    ),
    Mistake(
        "position_shift",
        "korean_tutorial",
        "x = x + self.positions ",
        "x = x + self.positions.roll(1, 0) ",
    ),
    Mistake(
        "missing_residual",
        "separate_qkv",
        "return hidden_states + self.output(x)",
        "return self.output(x)",
    ),
    Mistake(
        "missing_residual",
        "multihead_attention",
        "tokens = tokens + self.dropout(y)",
        "tokens = self.dropout(y)",
    ),
    Mistake(
        "probabilities",
        "encoder_pre_norm",
        "return self.fc(x[:, 0])",
        "return self.fc(x[:, 0]).softmax(-1)",
    ),
    Mistake(
        "probabilities",
        "multihead_attention",
        "return self.head(x[:, 0])",
        "return torch.softmax(self.head(x[:, 0]), dim=1)",
    ),
    # more than the eleven
    Mistake(
        "class_token_unread", "heads_in_a_list", "self.ln(tokens)[:, 0]", "self.ln(tokens)[:, -1]"
    ),
    Mistake(
        "class_token_unread", "heads_in_a_list", "self.ln(tokens)[:, 0]", "self.ln(tokens)[:, 3]"
    ),
    Mistake("batch_axis", "multihead_attention", "num_heads, batch_first=True", "num_heads"),
    Mistake(
        "batch_axis",
        "encoder_pre_norm",
        "            batch_first=True,\n",
        "",
    ),
    Mistake(
        "scale_after_softmax",
        "korean_tutorial",
        "torch.softmax(energy / scaling, dim=-1)",
        "torch.softmax(energy, dim=-1) / scaling",
    ),
    Mistake("scale_inverted", "einops_blocks", "dim_head**-0.5", "dim_head**0.5"),
    Mistake(
        "head_split",
        "separate_qkv",
        "        x = x.view(x.size(0), x.size(1), self.num_heads, self.head_size)\n"
        "        return x.permute(0, 2, 1, 3)\n",
        "        return x.view(x.size(0), self.num_heads, x.size(1), self.head_size)\n",
    ),
    Mistake(
        "patch_order",
        "heads_in_a_list",
        "x = images.reshape(b, c, h // p, p, w // p, p)\n"
        "        return x.permute(0, 2, 4, 1, 3, 5).reshape(b,",
        "x = images\n        return x.reshape(b,",
    ),
    Mistake(
        "token_order",
        "fused_qkv",
        "self.proj(x).flatten(2).transpose(1, 2)",
        "self.proj(x).reshape(x.shape[0], self.num_patches, -1)",
    ),
    Mistake("no_positions", "separate_qkv", "return x + self.position_embeddings", "return x"),
    Mistake(
        "no_activation",
        "einops_blocks",
        "nn.Linear(dim, hidden), nn.GELU(), ",
        "nn.Linear(dim, hidden), ",
    ),
    Mistake(
        "normed_residual",
        "fused_qkv",
        "x = x + self.attn(self.norm1(x))",
        "x = self.norm1(x)\n        x = x + self.attn(x)",
    ),
    Mistake(
        "normed_residual",
        "multihead_attention",
        "tokens = tokens + self.dropout(y)",
        "tokens = self.ln_attention(tokens) + self.dropout(y)",
    ),
    Mistake(
        "normed_residual",
        "fused_qkv",
        "x = x + self.mlp(self.norm2(x))",
        "x = self.norm2(x) + self.mlp(self.norm2(x))",
    ),
    Mistake(
        "dropout_in_eval",
        "multihead_attention",
        "self.act(self.linear_1(x))",
        "nn.functional.dropout(self.act(self.linear_1(x)), 0.1)",
    ),
)

BY_HAND = """class norm_layer(nn.Module):
            def __init__(self, dim, eps=1e-6):
                super().__init__()
                self.gamma = nn.Parameter(torch.ones(dim))
                self.beta = nn.Parameter(torch.zeros(dim))
                self.eps = eps

            def forward(self, x):
                mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
                return self.gamma * (x - mean) / (std + self.eps) + self.beta

"""

# Choices rather than mistakes: each must be named as a difference, and raise no alarm.
DIFFERENCES = (
    Mistake("activation", "einops_blocks", "nn.GELU()", 'nn.GELU(approximate="tanh")'),
    Mistake("norm_formula", "fused_qkv", "norm_layer = partial(nn.LayerNorm, eps=1e-6)\n", BY_HAND),
    Mistake("activation", "fused_qkv", "self.act = nn.GELU()", "self.act = nn.ReLU()"),
    Mistake("merge_layout", "einops_blocks", "b h n d -> b n (h d)", "b h n d -> b n (d h)"),
    Mistake("qkv_layout", "einops_blocks", "b n (t h d) -> t b h n d", "b n (d t h) -> t b h n d"),
    Mistake(
        "norm_eps",
        "multihead_attention",
        "self.ln = nn.LayerNorm(hidden_dim, eps=1e-6)",
        "self.ln = nn.LayerNorm(hidden_dim)",
    ),
    Mistake(
        "pool", "fused_qkv", "self.forward_features(x)[:, 0]", "self.forward_features(x).mean(1)"
    ),
    Mistake(
        "log_probabilities",
        "multihead_attention",
        "return self.head(x[:, 0])",
        "return torch.log_softmax(self.head(x[:, 0]), dim=1)",
    ),
)
