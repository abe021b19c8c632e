"""What of the documentation is parsed and not executed, with reasons, and what is shortened."""

import re

# Patterns of whole commands; the first that is found gives the reason.
COMMANDS = {
    r"^vitrail serve": "does not end by itself: tests/serving runs it",
    r"^vitrail bench": "measures for long, in processes of its own: tests/tasks/test_bench.py",
    r"^vitrail compare": "trains many models: tests/tasks/test_compare.py",
    r"^vitrail reproduce (?!.*--dry-run)": "trains many models: tests/tasks/test_reproduce.py",
    r"://|bucket": "needs a network or a service",
    r"--processes|--ray\b|--engine ray|--address|torchrun": "starts processes: tests/training",
    r"\b(timm|google|owner|hf-hub:\w+)/\w": "is a download from the hub",
    r"imagenet|fashion-mnist|mae_pretrain|resnet50-11ad3fa6": "needs files that are not here",
    r"train .*--model (vit_[sblhgG]|resnet|mobilevit)": "is a model of full size",
    r"--image-size 384 --out|--recipe finetune": "is an image size of minutes on a processor",
    r"\.mlpackage|\.pte|\.tflite|--to web|pets-page": "needs converters: tests/exporters",
    r"fields/|runs/fields|new\.tif": "reads images of many bands: tests/data/test_bands.py",
    r"shards/": "reads shards: tests/data/test_shards.py",
    r"--precision int8|--speed-up": "calibrates on many images: tests/tasks/test_int8.py",
    r"--engine (openvino|onnxruntime)": "builds an engine: tests/inference/test_engines.py",
    r"--resolutions|--patch-sizes": "depends on the sizes of a model: tests/cli/test_evaluate.py",
    r"--objective (beit|tokenizer)|runs/beit|runs/tokenizer": "tests/cli/test_pretraining.py",
    r"--rows edited|--to mine/rows": "an edited file: tests/cli/test_adopt.py",
    r"--and ": "two models of one size: tests/cli/test_explain.py",
    r"plan\.yaml": "trains many models: tests/tasks/test_compare.py",
    r"--standby|birds\.onnx": "tests/serving",
    r"--against vit_b_16": "takes minutes: tests/tasks/test_check.py",
    r"--target roses": "a class of another data set: tests/cli/test_explain.py",
}

# (page, what the block has): the reason.
PYTHON = {
    ("", "Client("): "needs a service: tests/inference/test_client.py",
    ("", "tritonclient"): "needs a service: tests/serving",
    ("", "timm/vit_base"): "is a download from the hub",
    ("", "encoder.pkl"): "opens a pickle that is not here",
    ("", 'same("encoder'): "is a row of a dialect, and no whole program",
    ("", "folds="): "trains five models: tests/tasks/test_folds.py",
    ("", "tokenizer"): "trains two models: tests/cli/test_pretraining.py",
    ("", "vitrail.compare("): "trains many models: tests/tasks/test_compare.py",
    ("", "reproduce("): "trains many models: tests/tasks/test_reproduce.py",
    ("", "register_family"): "needs the family: tests/models/test_register.py",
    ("", "equivariance"): "needs models of two families: tests/explanation/test_equivariance.py",
    ("docs/inference.md", "engine="): "builds engines: tests/inference/test_engines.py",
    ("docs/inference.md", "packed_logits"): "needs images of a model: tests/models/test_packing.py",
    ("docs/inference.md", "merge_tokens"): "needs a larger model: tests/inference/test_merging.py",
    ("docs/training.md", "vitrail.train"): "trains for 20 epochs: tests/tasks/test_train.py",
    ("docs/explain.md", "blocks.11"): "needs twelve blocks: tests/explanation/test_capture_qkv.py",
    ("docs/measuring.md", "[2, 5, 8, 11]"): "needs twelve blocks: tests/models/test_model.py",
    ("docs/export.md", "vt.export"): "exports: tests/exporters/test_export.py",
    ("docs/adopt.md", "vitrail.adopt"): "needs files of an example: tests/cli/test_adopt.py",
}

# Pages whose printed lines are the same everywhere, and are compared.
DETERMINISTIC = (
    "docs/concepts/attention-from-outside.md",
    "docs/ko/articles.md",
    "docs/how-to/finetune-384.md",
    "docs/concepts/an-image-walks.md",
)


def command_reason(text: str) -> str | None:
    """Why a command is not executed, if so.

    >>> command_reason("vitrail serve runs/pets/best")
    'does not end by itself: tests/serving runs it'
    """
    return next((why for pattern, why in COMMANDS.items() if re.search(pattern, text)), None)


def python_reason(page: str, text: str) -> str | None:
    """Why a block of Python is not executed, if so."""
    for (where, part), why in PYTHON.items():
        if where in ("", page) and part in text:
            return why
    return None


def shortened(words: list[str]) -> list[str]:
    """A command line that takes two steps in place of a run.

    >>> shortened(["train", "photos", "--epochs", "20", "--folds", "5"])
    ['train', 'photos', '--folds', '2', '--steps', '2']
    """
    if words[0] not in ("train", "pretrain") or {"--dry-run", "--resume"} & set(words):
        return words
    kept, skip = [], False
    for word in words:
        if skip or word in ("--epochs", "--minutes", "--steps"):
            skip = not skip
        else:
            kept.append(word)
    if "--folds" in kept:
        kept[kept.index("--folds") + 1] = "2"
    return [*kept, "--steps", "2"]
