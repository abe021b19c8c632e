"""Rows as Arrow has them, so that a laptop and a cluster write the same Parquet."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import numpy as np

from vitrail.core.errors import UserError
from vitrail.core.json_text import utf8_name
from vitrail.inference.prediction import Output, Prediction, rank_classes

Precision = Literal["float16", "float32"]


def pyarrow(module: str = "pyarrow") -> Any:
    """pyarrow or a module of it, or one sentence how to get it."""
    try:
        return import_module(module)
    except ImportError:
        raise UserError(
            "Parquet is written with pyarrow, which is not installed: "
            "pip install 'vitrail[parquet]'"
        ) from None


@dataclass(frozen=True)
class PredictionTable:
    """Answers as predictions: name, label, score, top and problem."""

    labels: Sequence[str]
    top: int

    def __call__(self, outputs: Iterable[Output]) -> Any:
        return prediction_table(rank_classes(output, self.labels, self.top) for output in outputs)


@dataclass(frozen=True)
class EmbeddingTable:
    """Answers as embeddings: id, embedding (flat, null where there is none) and problem."""

    precision: Precision

    def check_range(self, one: Output) -> Output:
        """The output, if its numbers are finite at this precision too."""
        if one.values is None:
            return one
        largest = np.abs(one.values).max(initial=0)
        if largest <= np.finfo(self.precision).max:
            return one
        reason = f"its features reach {largest:.3g}, which {self.precision} cannot hold"
        return Output(one.name, None, f"{reason}: use vector_precision float32")

    def __call__(self, outputs: Sequence[Output]) -> Any:
        pa = pyarrow()
        kind = np.dtype(self.precision)
        outputs = [self.check_range(one) for one in outputs]
        rows = [None if one.values is None else one.values.astype(kind).ravel() for one in outputs]
        values = pa.array(
            np.concatenate([np.empty(0, kind), *(row for row in rows if row is not None)])
        )
        lengths = [0 if row is None else len(row) for row in rows]
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        absent = pa.array([row is None for row in rows], pa.bool_())
        return pa.table(
            {
                "id": pa.array([utf8_name(one.name) for one in outputs], pa.string()),
                "embedding": pa.ListArray.from_arrays(offsets, values, mask=absent),
                "problem": pa.array([one.problem for one in outputs], pa.string()),
            }
        )


def prediction_schema() -> Any:
    pa = pyarrow()
    pair = pa.struct([("label", pa.string()), ("score", pa.float32())])
    return pa.schema(
        [
            ("name", pa.string()),
            ("label", pa.string()),
            ("score", pa.float32()),
            ("top", pa.list_(pair)),
            ("problem", pa.string()),
        ]
    )


def prediction_table(predictions: Iterable[Prediction]) -> Any:
    rows = [one.facts() for one in predictions]
    return pyarrow().Table.from_pylist(rows, schema=prediction_schema())


def predictions_of(table: Any) -> Iterator[Prediction]:
    """The way back."""
    for row in table.to_pylist():
        top = tuple((pair["label"], pair["score"]) for pair in row["top"])
        yield Prediction(row["name"], row["label"], row["score"], top, row["problem"])
