"""What the words in a tensor's name say about the layer that it belongs to."""

import re

WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")

ATTENTION = {"attn", "attention", "mha", "msa", "mhsa", "sa", "self", "heads", "multihead"}
MLP = {"mlp", "ff", "ffn", "feed", "fc", "intermediate", "linear", "net", "expand", "hidden"}
# Words of the layer's own name; earlier parts of the path say which group it is in.
ROLES: dict[str, set[str]] = {
    "qkv": {"qkv", "wqkv", "in", "attn", "kqv"},
    "q": {"q", "wq", "query", "queries", "qs"},
    "k": {"k", "wk", "key", "keys", "ks"},
    "v": {"v", "wv", "value", "values", "vs"},
    "kv": {"kv", "wkv"},
    "out": {"out", "o", "wo", "output", "proj", "projection", "dense", "unify", "fc", "merge"},
    "gate": {"gate", "g", "silu", "swish"},
    "fc1": {"1", "fc", "up", "expand", "intermediate", "in", "hidden", "first"},
    "fc2": {"2", "proj", "down", "contract", "output", "out", "second"},
    "norm1": {"1", "attn", "attention", "before", "first", "pre", "a"},
    "norm2": {"2", "mlp", "ff", "ffn", "after", "second", "post", "b"},
}
IN_ATTENTION = {"qkv", "q", "k", "v", "kv", "out"}
IN_MLP = {"gate", "fc1", "fc2"}
POSITIONS = {"pos", "position", "positions", "positional", "wpe", "pe"}
CLASS = {"cls", "class", "token", "clf"}
# Prefix tokens that are something else than the class token.
OTHER_TOKENS = {"mask": "mask", "dist": "distillation", "distillation": "distillation"}
REGISTERS = {"reg", "register", "registers"}
HEAD = {
    "head",
    "classifier",
    "classify",
    "fc",
    "logits",
    "classes",
    "cls",
    "out",
    "output",
    "final",
}
PATCH = {"patch", "patches", "proj", "projection", "embed", "embedding", "conv", "tokens", "wte"}


def words_of(name: str) -> list[str]:
    """
    >>> words_of("blocks.{i}.selfAttn.in_proj")
    ['blocks', 'self', 'attn', 'in', 'proj']
    """
    plain = re.sub(r"{[^}]*}", "", name)
    return [word.lower() for word in WORD.findall(plain)]


def own_words(path: str) -> list[str]:
    """The words of the last part of a path; numbers and containers say nothing by themselves."""
    return words_of(path.rpartition(".")[2])


def score_words(path: str, role: str) -> float:
    """How well the words of a path fit a role."""
    own, all_words = set(own_words(path)), set(words_of(path))
    score = 2.0 if own & ROLES[role] else 0.0
    rivals = {word for name in ("q", "k", "v", "qkv", "kv") for word in ROLES[name]} - {
        "in",
        "attn",
    }
    if role in ("out", "fc1", "fc2") and own & rivals:
        score -= 3
    before = all_words - own
    if role in IN_ATTENTION:
        score += 2.0 * bool(before & ATTENTION) - 2.0 * bool(before & MLP)
    if role in IN_MLP:
        score += 2.0 * bool(all_words & MLP) - 2.0 * bool(before & ATTENTION)
    return score
