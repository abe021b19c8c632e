"""The result of an evaluation: metrics, calibration, classes, and the same for machines."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.core.broken import BrokenImage, list_broken
from vitrail.core.json_text import plain_values
from vitrail.core.outputs import Outputs
from vitrail.core.passport import Preprocessing
from vitrail.data.source import Source
from vitrail.evaluation.calibration import Reliability, TemperatureScaling
from vitrail.evaluation.classify import class_metrics, confusion_matrix
from vitrail.evaluation.corruptions import CORRUPTIONS, DIFFERS
from vitrail.evaluation.intervals import LEVEL, METHODS
from vitrail.evaluation.mistakes import labelled_prediction
from vitrail.evaluation.robustness import Robustness
from vitrail.inference.quantisation import Quantisation
from vitrail.pages.evaluation import evaluation_page
from vitrail.pages.thumbnails import data_uri
from vitrail.pages.translation import translated_sentence
from vitrail.tasks.examples import class_examples, class_facts, mistake_examples
from vitrail.tasks.html_record import HtmlRecord
from vitrail.weights.atomic import write_file

MAX_MISTAKES = 12  # images in each of the two galleries


@dataclass(frozen=True, kw_only=True)
class SizeResult:
    """The headline metric at one size, how the weights were resized for it, or, where they cannot
    be, the `problem`."""

    size: str
    metric: str | None = None
    value: float | None = None
    interval: tuple[float, float] | None = None
    changes: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class Evaluation(HtmlRecord):
    """How good a model is on one split of a data set: `metrics` by name with the `intervals` of
    95 % confidence, from `resamples` bootstrap samples; `outputs` are those of every image of
    `source`; `notes` list what was assumed."""

    title: str
    model: str
    data: str
    seed: int
    preprocessing: Preprocessing
    engine: str
    source: Source
    outputs: Outputs
    metrics: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    resamples: int
    reliability: Reliability
    temperature: TemperatureScaling | None = None
    robustness: Robustness | None = None
    resolutions: Sequence[SizeResult] = ()
    patch_sizes: Sequence[SizeResult] = ()
    speed_up: Mapping[str, Any] | None = None
    quantisation: Quantisation | None = None
    notes: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    """Where the report, the facts and the predictions were written, if they were."""

    @property
    def images(self) -> int:
        return self.outputs.images

    @property
    def broken(self) -> tuple[BrokenImage, ...]:
        """Images that could not be read, and why."""
        return list_broken(self.outputs.broken)

    @property
    def accuracy(self) -> float | None:
        """None where an image may have several labels: metrics has mean_precision then."""
        return self.metrics.get("accuracy")

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON; what cannot be computed is null."""
        outputs = self.outputs
        facts = {
            "model": self.model,
            "data": self.data,
            "split": outputs.split,
            "images": outputs.images,
            "seed": self.seed,
            "preprocessing": asdict(self.preprocessing),
            **self.metrics,
            "intervals": self.intervals,
            "intervals_are": {"level": LEVEL, "resamples": self.resamples, "how": METHODS},
            "reliability": bins_facts(self.reliability),
            "temperature": temperature_facts(self.temperature),
            "classes": [
                {name: value for name, value in asdict(row).items() if name != "marked"}
                for row in class_metrics(outputs)
            ],
            "confusion": None if outputs.multi_label else confusion_matrix(outputs).tolist(),
            "corruptions": robustness_facts(self.robustness),
            "resolutions": [asdict(row) for row in self.resolutions],
            "patch_sizes": [asdict(row) for row in self.patch_sizes],
            "engine": self.engine,
            "speed_up": None if self.speed_up is None else dict(self.speed_up),
            "quantisation": None if self.quantisation is None else self.quantisation.facts(),
            "nonfinite": outputs.nonfinite,
            "notes": list(self.notes),
            "broken": [asdict(one) for one in self.broken],
            "files": self.files,
        }
        return dict(plain_values(facts))

    def save_predictions(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write a CSV file with a line for each image: its name, truth, prediction and how probable
        each is. Several labels are joined by |, and so are their probabilities; an image that
        cannot be read has a problem instead."""
        return write_file(Path(path), self._fill_predictions, overwrite=overwrite)

    def _fill_predictions(self, path: Path) -> None:
        # a name that is not valid Unicode must never keep the file from being written
        with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            table = csv.writer(file)
            table.writerow(COLUMNS)
            wrong = np.zeros(self.images, dtype=np.bool_)
            wrong[self.outputs.wrong] = True
            for row in range(self.images):
                one = labelled_prediction(self.outputs, row)
                cells = [
                    "|".join(label for label, _ in one.truth),
                    "|".join(label for label, _ in one.predicted),
                    "no" if wrong[row] else "yes",
                    "|".join(f"{chance:.6f}" for _, chance in one.predicted),
                    "|".join(f"{chance:.6f}" for _, chance in one.truth),
                ]
                table.writerow([self.source.name(one.index), *cells, ""])
            for name, reason in self.outputs.broken.items():
                table.writerow([name, "", "", "", "", "", reason])

    def html(self) -> str:
        """The page: metrics, calibration, classes, confusions, mistakes."""
        outputs, known = self.outputs, self.robustness
        galleries = {"Most confident": mistake_examples(outputs, self.source, most=MAX_MISTAKES)}
        if len(outputs.wrong) > MAX_MISTAKES:  # only where they can be others
            galleries["Lowest probability for the true class"] = mistake_examples(
                outputs, self.source, "loss", MAX_MISTAKES
            )
        return evaluation_page(
            self.facts() | {"classes": class_facts(outputs), "broken": dict(outputs.broken)},
            title=translated_sentence(self.title),
            preprocessing=preprocessing_sentence(self.preprocessing),
            mistakes=galleries,
            by_class=class_examples(outputs, self.source),
            wrong=len(outputs.wrong),
            corrupted=None if known is None else _corrupted(known),
        )

    def __repr__(self) -> str:
        metrics = ", ".join(f"{name} {value:.4f}" for name, value in self.metrics.items())
        return f"Evaluation({self.model} on {self.data}, {self.images} images: {metrics})"


COLUMNS = ("image", "truth", "predicted", "right", "probability", "truth_probability", "problem")


def preprocessing_sentence(how: Preprocessing) -> str:
    """What a foreign file does not say is taken from its dialect: a person must be able to see."""
    mean, std = (", ".join(f"{value:g}" for value in values) for values in (how.mean, how.std))
    return (
        f"The model reads {how.size[0]} x {how.size[1]} pixels: images are {how.in_words()}, "
        f"brought to values from 0 to 1 and normalised by a mean of {mean} and a standard "
        f"deviation of {std}."
    )


def _corrupted(found: Robustness) -> dict[str, str]:
    """An image under each corruption."""
    names = zip(CORRUPTIONS, found.examples, strict=True)
    return {name: data_uri(pixels) for name, pixels in names}


def bins_facts(bins: Reliability) -> dict[str, Any]:
    return {name: values.tolist() for name, values in vars(bins).items()}


def temperature_facts(found: TemperatureScaling | None) -> dict[str, Any] | None:
    if found is None:
        return None
    bins = bins_facts(found.reliability)
    return {**vars(found), "ece": found.reliability.ece, "reliability": bins}


def robustness_facts(found: Robustness | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "metric": found.metric,
        "images": found.images,
        "constants_for": found.side,
        "clean": found.clean,
        "by_severity": dict(zip(CORRUPTIONS, found.values.tolist(), strict=True)),
        "mean": found.mean,
        "interval_of_mean": found.interval,
        "error_relative_to_clean": found.relative_error,
        "differs": list(DIFFERS),
    }
