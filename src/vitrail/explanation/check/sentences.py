"""Every sentence of `vitrail check`, in English and Korean."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

Language: TypeAlias = Literal["en", "ko"]

# Mistakes: what the code does, what the paper does, what to write.
MISTAKES: dict[str, tuple[str, str]] = {
    "scale_dim": (
        "scores are divided by sqrt(dim) = {root_dim}, the paper divides by sqrt(dim_head) = "
        "{root_head}: use dim_head ** -0.5",
        "어텐션 점수를 sqrt(dim) = {root_dim}(으)로 나눕니다. 논문은 sqrt(dim_head) = "
        "{root_head}(으)로 "
        "나눕니다: dim_head ** -0.5를 쓰세요",
    ),
    "no_scale": (
        "scores are not scaled, the paper divides them by sqrt(dim_head) = {root_head}: multiply "
        "q @ k.T by dim_head ** -0.5",
        "어텐션 점수를 나누지 않습니다. 논문은 sqrt(dim_head) = {root_head}(으)로 나눕니다: q @ "
        "k.T에 "
        "dim_head ** -0.5를 곱하세요",
    ),
    "scale_inverted": (
        "scores are multiplied by sqrt(dim_head) = {root_head}, the paper divides by it: use "
        "dim_head ** -0.5",
        "어텐션 점수에 sqrt(dim_head) = {root_head}을(를) 곱합니다. 논문은 그 값으로 나눕니다: "
        "dim_head ** -0.5를 쓰세요",
    ),
    "scale_no_root": (
        "scores are divided by dim_head = {dim_head}, the paper divides by its square root "
        "{root_head}: use dim_head ** -0.5",
        "어텐션 점수를 dim_head = {dim_head}(으)로 나눕니다. 논문은 그 제곱근 {root_head}(으)로 "
        "나눕니다: "
        "dim_head ** -0.5를 쓰세요",
    ),
    "scale_heads": (
        "scores are divided by the square root of the number of heads, {root_heads}, the paper "
        "divides by sqrt(dim_head) = {root_head}: use dim_head ** -0.5",
        "어텐션 점수를 헤드 수의 제곱근 {root_heads}(으)로 나눕니다. 논문은 sqrt(dim_head) = "
        "{root_head}(으)로 나눕니다: dim_head ** -0.5를 쓰세요",
    ),
    "scale_other": (
        "scores are divided by {divisor}, the paper divides by sqrt(dim_head) = {root_head}: use "
        "dim_head ** -0.5",
        "어텐션 점수를 {divisor}(으)로 나눕니다. 논문은 sqrt(dim_head) = {root_head}(으)로 "
        "나눕니다: "
        "dim_head ** -0.5를 쓰세요",
    ),
    "scale_after_softmax": (
        "attention weights are divided after the softmax, so that they no longer sum to 1; the "
        "paper divides the scores before it: softmax(scores / sqrt(dim_head))",
        "softmax 다음에 나누어서 어텐션 가중치의 합이 1이 아닙니다. 논문은 softmax 전에 점수를 "
        "나눕니다: "
        "softmax(scores / sqrt(dim_head))",
    ),
    "softmax_axis": (
        "the softmax runs over the {axis}, the paper's over the keys, so that each row sums to 1: "
        "use softmax(dim=-1)",
        "softmax를 {axis} 축으로 계산합니다. 논문은 키 축으로 계산하여 각 행의 합이 1입니다: "
        "softmax(dim=-1)을 쓰세요",
    ),
    "head_split": (
        "q, k and v are reshaped to (B, heads, N, dim_head) directly, which mixes tokens and "
        "heads: "
        "reshape to (B, N, heads, dim_head), then transpose(1, 2)",
        "q, k, v를 바로 (B, heads, N, dim_head)로 바꾸어 토큰과 헤드가 섞입니다: (B, N, heads, "
        "dim_head)로 바꾼 다음 transpose(1, 2)를 하세요",
    ),
    "head_order": (
        "heads are merged by a reshape alone, which mixes tokens and heads: transpose(1, 2) to "
        "(B, N, heads, dim_head) first, then reshape to (B, N, dim)",
        "헤드를 reshape만으로 합쳐 토큰과 헤드가 섞입니다: 먼저 transpose(1, 2)로 (B, N, heads, "
        "dim_head)를 만든 다음 (B, N, dim)으로 reshape하세요",
    ),
    "batch_axis": (
        "attention runs over the images of the batch, not over the tokens of an image: give "
        "nn.MultiheadAttention or nn.TransformerEncoderLayer batch_first=True",
        "어텐션이 한 이미지의 토큰이 아니라 배치의 이미지들 사이에서 계산됩니다: "
        "nn.MultiheadAttention"
        "이나 nn.TransformerEncoderLayer에 batch_first=True를 주세요",
    ),
    "missing_attention_norm": (
        "no LayerNorm before attention; the paper has x + attention(norm(x)) (eq. 2)",
        "어텐션 앞에 LayerNorm이 없습니다. 논문은 x + attention(norm(x))입니다 (식 2)",
    ),
    "missing_mlp_norm": (
        "no LayerNorm before the MLP; the paper has x + mlp(norm(x)) (eq. 3)",
        "MLP 앞에 LayerNorm이 없습니다. 논문은 x + mlp(norm(x))입니다 (식 3)",
    ),
    "missing_final_norm": (
        "no LayerNorm after the last block; the paper's head reads norm(x) (eq. 4)",
        "마지막 블록 뒤에 LayerNorm이 없습니다. 논문의 헤드는 norm(x)를 읽습니다 (식 4)",
    ),
    "normed_residual": (
        "the residual adds the output of the norm, the paper adds its input: "
        "x + branch(norm(x)), not norm(x) + branch(norm(x))",
        "잔차 연결이 정규화한 값을 더합니다. 논문은 정규화하기 전의 값을 더합니다: norm(x) + "
        "branch(norm(x))가 아니라 x + branch(norm(x))",
    ),
    "missing_residual": (
        "no residual around {branch}; the paper has x + {branch}(norm(x))",
        "{branch}에 잔차 연결이 없습니다. 논문은 x + {branch}(norm(x))입니다",
    ),
    "no_activation": (
        "no activation between the two layers of the MLP, which makes them one linear layer; the "
        "paper has GELU",
        "MLP의 두 층 사이에 활성화 함수가 없어 선형 층 하나와 같습니다. 논문은 GELU를 씁니다",
    ),
    "class_token_last": (
        "the class token is joined after the patches, but the head reads token 0, a patch: join it "
        "as torch.cat([cls, patches], dim=1)",
        "클래스 토큰을 패치들의 뒤에 붙이지만 헤드는 0번 토큰, 즉 패치를 읽습니다: "
        "torch.cat([cls, patches], dim=1)로 붙이세요",
    ),
    "class_token_unread": (
        "the head reads x[:, {read}], a patch, in place of the class token: read x[:, {place}]",
        "헤드가 클래스 토큰 대신 패치인 x[:, {read}]을(를) 읽습니다: x[:, {place}]을(를) 읽으세요",
    ),
    "class_token_missing": (
        "the head reads x[:, {read}], but there is no class token, so it reads a patch: join a "
        "class token with the patches, or read the mean x.mean(dim=1)",
        "헤드가 x[:, {read}]을(를) 읽지만 클래스 토큰이 없어 패치를 읽습니다: "
        "클래스 토큰을 붙이거나 평균 "
        "x.mean(dim=1)을 읽으세요",
    ),
    "position_shift": (
        "rows of the position table go to other tokens than their own (off by one): row 0 belongs "
        "to the class token, row i to patch i; add the table after the class token is joined",
        "위치 임베딩의 행이 어긋나 다른 토큰에 더해집니다 (하나씩 밀림): 0번 행은 클래스 토큰, i"
        "번 행은 "
        "i번 패치의 것입니다; 클래스 토큰을 붙인 다음에 더하세요",
    ),
    "no_positions": (
        "no position embedding is added, so the model cannot know where a patch was{unused}; the "
        "paper adds one (eq. 1)",
        "위치 임베딩을 더하지 않아 패치가 어디에 있었는지 알 수 없습니다{unused}. 논문은 더합니다 "
        "(식 1)",
    ),
    "patch_order": (
        "patches are cut by a reshape alone, so each holds strips of rows, not a square: reshape "
        "to "
        "(B, C, H/P, P, W/P, P), permute(0, 2, 4, 1, 3, 5), then flatten",
        "reshape만으로 패치를 나누어 각 패치가 정사각형이 아니라 줄 조각입니다: (B, C, H/P, P, "
        "W/P, P)로 "
        "reshape하고 permute(0, 2, 4, 1, 3, 5)한 다음 펼치세요",
    ),
    "token_order": (
        "the feature map (B, dim, H/P, W/P) is reshaped to tokens without a transpose, which mixes "
        "channels and places: use flatten(2).transpose(1, 2)",
        "특징 맵 (B, dim, H/P, W/P)을 전치 없이 토큰으로 reshape하여 채널과 위치가 섞입니다: "
        "flatten(2).transpose(1, 2)를 쓰세요",
    ),
    "probabilities": (
        "forward returns probabilities ({function}), but nn.CrossEntropyLoss applies the softmax "
        "itself: return the logits",
        "forward가 확률을 돌려줍니다 ({function}). nn.CrossEntropyLoss는 softmax를 스스로 "
        "계산합니다: 로짓을 돌려주세요",
    ),
    "dropout_in_eval": (
        "dropout runs in eval mode: use nn.Dropout, or F.dropout(x, p, training=self.training)",
        "eval 모드에서도 드롭아웃이 작동합니다: nn.Dropout이나 F.dropout(x, p, "
        "training=self.training)을 쓰세요",
    ),
}

# Choices that work as well: what the code has, what the reference has.
DIFFERENCES: dict[str, tuple[str, str]] = {
    "activation": (
        "the MLP's activation is {yours}, {reference} has {theirs}",
        "MLP의 활성화 함수가 {yours}입니다. {reference}: {theirs}",
    ),
    "norm_eps": (
        "LayerNorm's eps is {yours}, {reference} has {theirs}: give nn.LayerNorm(dim, "
        "eps={theirs}) before loading pretrained weights",
        "LayerNorm의 eps가 {yours}입니다. {reference}: {theirs}. 사전 학습된 가중치를 쓰려면 "
        "nn.LayerNorm(dim, eps={theirs})로 두세요",
    ),
    "pool": (
        "the head reads {yours}, {reference}: {theirs}",
        "헤드가 읽는 것: {yours}. {reference}: {theirs}",
    ),
    "norm_placement": (
        "norms are {yours}, {reference} has {theirs}",
        "정규화의 위치: {yours}. {reference}: {theirs}",
    ),
    "qkv_bias": (
        "q, k and v have {yours}, {reference} has {theirs}",
        "q, k, v: {yours}. {reference}: {theirs}",
    ),
    "position_rows": (
        "the class token has no position of its own; in {reference} it has row 0 of the table",
        "클래스 토큰에는 위치 임베딩이 없습니다. {reference}: 표의 0번 행",
    ),
    "overlap": (
        "patches overlap or leave pixels out (kernel and stride differ), {reference} cuts a grid",
        "커널과 스트라이드가 달라 패치가 겹치거나 픽셀이 빠집니다. {reference}: 격자",
    ),
    "token_columns": (
        "patches are read column by column, {reference} reads them row by row",
        "패치를 열 순서로 읽습니다. {reference}: 행 순서",
    ),
    "class_token_end": (
        "the class token is last and read there, in {reference} it is first",
        "클래스 토큰이 맨 뒤에 있고 거기서 읽습니다. {reference}: 맨 앞",
    ),
    "qkv_layout": (
        "q, k and v lie in their projection as {yours}, usual is {theirs}: weights of others need "
        "their rows reordered",
        "한 층 안의 q, k, v 순서가 {yours}입니다. 보통은 {theirs}입니다: 다른 가중치를 쓰려면 "
        "행의 "
        "순서를 바꿔야 합니다",
    ),
    "merge_layout": (
        "heads are merged as (dim_head, heads), usual is (heads, dim_head): weights of others need "
        "the columns of their output projection reordered",
        "헤드를 (dim_head, heads) 순서로 합칩니다. 보통은 (heads, dim_head)입니다: 다른 가중치를 "
        "쓰려면 출력 투영의 열 순서를 바꿔야 합니다",
    ),
    "layer_scale": (
        "branches are multiplied by a learned LayerScale, {reference} has none",
        "가지에 학습되는 LayerScale을 곱합니다. {reference}: 없음",
    ),
    "head_layers": (
        "the head has {yours} layers, {reference} has one for fine-tuning (two for pre-training)",
        "헤드가 {yours}층입니다. {reference}: 미세 조정에는 하나, 사전 학습에는 둘",
    ),
    "norm_formula": (
        "your own LayerNorm divides by {yours}, nn.LayerNorm (as {reference}) by sqrt(variance + "
        "eps): use nn.LayerNorm before loading pretrained weights",
        "직접 쓴 LayerNorm이 {yours}(으)로 나눕니다. nn.LayerNorm ({reference}): sqrt(분산 + "
        "eps). 사전 학습된 가중치를 쓰려면 nn.LayerNorm을 쓰세요",
    ),
    "patch_norm": (
        "patches are normalised before or after their projection, in {reference} they are not",
        "패치를 투영 앞이나 뒤에서 정규화합니다. {reference}: 하지 않음",
    ),
    "embed_norm": (
        "the tokens are normalised before the first block, in {reference} they are not",
        "첫 블록 앞에서 토큰을 정규화합니다. {reference}: 하지 않음",
    ),
    "no_output_projection": (
        "attention has no output projection after its heads, {reference} has one",
        "어텐션의 헤드들 뒤에 출력 투영이 없습니다. {reference}: 있음",
    ),
    "log_probabilities": (
        "forward returns log-probabilities, for nn.NLLLoss; {reference} returns logits, for "
        "nn.CrossEntropyLoss",
        "forward가 로그 확률을 돌려줍니다 (nn.NLLLoss용). {reference}: 로짓 "
        "(nn.CrossEntropyLoss용)",
    ),
    "unused": (
        "parameters that the forward pass never uses: {names}",
        "forward에서 한 번도 쓰이지 않는 파라미터: {names}",
    ),
    "size": (
        "{field} is {yours}, {reference} has {theirs}",
        "{field} = {yours}. {reference}: {theirs}",
    ),
}

UNKNOWN = (
    "computed in a way that no known choice or mistake explains",
    "알려진 선택이나 실수로 설명되지 않는 계산입니다",
)

# Of the record: verdicts, headings, and how a finding is placed.
WORDS: dict[str, tuple[str, str]] = {
    "right": (
        "right: it computes what the reference computes",
        "올바름: 기준 모델과 같은 계산입니다",
    ),
    "one_mistake": ("1 mistake:", "실수 1개를 찾았습니다:"),
    "mistakes": (
        "{number} mistakes, in the order of the forward pass:",
        "실수 {number}개를 찾았습니다 (계산 순서):",
    ),
    "unknown": (
        "differs from the reference in a way that is not known",
        "기준 모델과 다르지만 원인을 알 수 없습니다",
    ),
    "differences_title": ("differences by choice (not mistakes)", "선택의 차이 (실수가 아님)"),
    "proof": (
        "the reference with these mistakes gives your output (largest difference {apart})",
        "이 실수들을 넣은 기준 모델은 같은 출력을 냅니다 (최대 차이 {apart})",
    ),
    "equal": (
        "output equal to the reference's (largest difference {apart})",
        "출력이 기준 모델과 같습니다 (최대 차이 {apart})",
    ),
    "line": ("line {line}: {text}", "{line}번째 줄: {text}"),
    "every_block": ("every block", "모든 블록"),
    "blocks": ("block {numbers}", "블록 {numbers}"),
    "step": ("step", "단계"),
    "shape": ("shape", "형태"),
    "yours": ("yours", "내 값"),
    "reference": ("reference", "기준"),
    "difference": ("difference", "차이"),
    "where": ("line", "줄"),
    "missing": ("missing", "없음"),
    "unseen": ("not visible", "보이지 않음"),
    "first": ("<- first difference", "<- 첫 차이"),
    "paper": ("the paper", "논문"),
    "sizes": (
        "dim {dim}, depth {depth}, heads {heads}, mlp_dim {mlp_dim}, patch {patch}, {tokens} "
        "tokens, {params} parameters",
        "dim {dim}, depth {depth}, heads {heads}, mlp_dim {mlp_dim}, 패치 {patch}, "
        "토큰 {tokens}개, 파라미터 {params}개",
    ),
}

# Values that sentences quote.
VALUES: dict[str, tuple[str, str]] = {
    "gelu": ("GELU", "GELU"),
    "gelu_tanh": ("GELU in its tanh approximation", "tanh 근사 GELU"),
    "quick_gelu": ("QuickGELU (x * sigmoid(1.702 x))", "QuickGELU (x * sigmoid(1.702 x))"),
    "relu": ("ReLU", "ReLU"),
    "silu": ("SiLU", "SiLU"),
    "tanh": ("tanh", "tanh"),
    "none": ("none", "없음"),
    "cls": ("the class token", "클래스 토큰"),
    "all": ("the mean of all tokens", "모든 토큰의 평균"),
    "mean": ("the mean of the patches", "패치들의 평균"),
    "cls+mean": ("the class token and the mean", "클래스 토큰과 평균"),
    "pre": ("before each branch (pre-norm)", "가지 앞 (pre-norm)"),
    "post": ("after each residual (post-norm)", "잔차 뒤 (post-norm)"),
    "bias": ("a bias", "편향 있음"),
    "no bias": ("no bias", "편향 없음"),
    "queries": ("queries", "쿼리"),
    "heads": ("heads", "헤드"),
    "images": ("images", "이미지"),
    "unbiased": ("sqrt(unbiased variance + eps)", "sqrt(비편향 분산 + eps)"),
    "rms": ("the root mean square (RMSNorm)", "제곱평균제곱근 (RMSNorm)"),
    "std_eps": ("standard deviation + eps", "표준편차 + eps"),
    "unbiased_std_eps": ("unbiased standard deviation + eps", "비편향 표준편차 + eps"),
    "first token": ("0", "0번"),
    "last token": ("-1", "마지막"),
    "attention": ("attention", "attention"),
    "mlp": ("mlp", "mlp"),
}

STEPS: dict[str, tuple[str, str]] = {
    "patches": ("patches", "패치"),
    "projection": ("projection", "투영"),
    "class token": ("class token", "클래스 토큰"),
    "positions": ("positions", "위치 임베딩"),
    "norm 1": ("norm 1", "정규화 1"),
    "attention": ("attention", "어텐션"),
    "q": ("q", "q"),
    "k": ("k", "k"),
    "v": ("v", "v"),
    "scores": ("scores", "점수"),
    "softmax": ("softmax", "softmax"),
    "weighted sum": ("weighted sum", "가중합"),
    "merged heads": ("merged heads", "헤드 합치기"),
    "output projection": ("output projection", "출력 투영"),
    "residual 1": ("residual 1", "잔차 1"),
    "norm 2": ("norm 2", "정규화 2"),
    "MLP hidden": ("MLP hidden", "MLP 은닉층"),
    "activation": ("activation", "활성화"),
    "MLP output": ("MLP output", "MLP 출력"),
    "residual 2": ("residual 2", "잔차 2"),
    "final norm": ("final norm", "마지막 정규화"),
    "pooling": ("pooling", "풀링"),
    "head": ("head", "헤드 (분류)"),
    "output": ("output", "출력"),
}


def pick(pair: tuple[str, str], language: Language) -> str:
    return pair[language == "ko"]


def word(name: str, language: Language, **values: Any) -> str:
    return pick(WORDS[name], language).format(**values)


def value_text(value: Any, language: Language) -> str:
    """A value as sentences quote it: words translated, numbers short."""
    if isinstance(value, str):
        return pick(VALUES[value], language) if value in VALUES else value
    if isinstance(value, float):
        return f"{value:.1f}" if value == round(value, 1) else f"{value:.3g}"
    return str(value)


def sentence(code: str, language: Language, values: Mapping[str, Any]) -> str:
    """What a finding says."""
    pair = MISTAKES.get(code) or DIFFERENCES.get(code) or UNKNOWN
    texts = {
        name: value if name == "field" else value_text(value, language)
        for name, value in values.items()
    }
    return pick(pair, language).format(**texts)


def step_text(step: str, language: Language) -> str:
    """The name of a step.

    >>> step_text("block 3 softmax", "ko"), step_text("patches", "en")
    ('블록 3 softmax', 'patches')
    """
    if not step.startswith("block "):
        return pick(STEPS[step], language)
    _, number, name = step.split(" ", 2)
    block = word("blocks", language, numbers=number)
    return f"{block} {pick(STEPS[name], language)}"
