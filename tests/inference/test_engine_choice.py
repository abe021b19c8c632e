"""The engine auto: what it chooses, what it refuses, and when it does not look at all."""

import logging
from dataclasses import replace
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
import pytest
import torch

from tests.inference.engine_doubles import Double, use
from tests.inference.photos import small_model
from vitrail import UserError, capture
from vitrail.inference.engine import Job, plan_of
from vitrail.inference.engines import auto
from vitrail.inference.engines.auto import OpenRunner, open_runner
from vitrail.inference.engines.cache import entries, find_entry
from vitrail.inference.engines.catalogue import check_engine, split_ray
from vitrail.inference.engines.eager import EagerRunner
from vitrail.inference.engines.model_graph import ModelGraph
from vitrail.inference.engines.timing import time_in_turns
from vitrail.models.model import Model

LONG = 10**9  # images: whatever is built pays


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(auto, "time_in_turns", impatient(time_in_turns))
    return tmp_path / "cache"


def impatient(function: Any) -> Any:
    """A few rounds, whatever time there is."""
    return lambda *given, **options: function(*given, **{**options, "seconds": 0.0})


def slow_eager(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Eager waits, so that another engine is faster whatever else this machine does."""
    compute = EagerRunner.forward

    def forward(self: EagerRunner, images: Any) -> Any:
        sleep(seconds)
        return compute(self, images)

    monkeypatch.setattr(EagerRunner, "forward", forward)


def open_for(images: int | None, model: Model | None = None, engine: str = "auto") -> OpenRunner:
    model = model or small_model()
    plan = plan_of(model, Job(output="scores", batch_size=2))
    return open_runner(model, plan, engine, images=images)


class Quick(Double):
    """Computes once, so that it is faster than eager."""

    def open(self, folder: Path, plan: Any) -> Any:
        run, known = super().open(folder, plan), dict[int, Any]()

        def remember(images: torch.Tensor) -> Any:
            key = hash(images.numpy().tobytes())
            if key not in known:
                known[key] = run(images)
            return known[key]

        return remember


def test_a_long_job_takes_the_fastest_and_the_next_start_builds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow_eager(monkeypatch, 0.005)
    fast, slow = Quick("fast"), Double("slow", seconds=0.02)
    use(monkeypatch, slow, fast)
    assert open_for(LONG).engine == "fast"
    assert (fast.built, slow.built) == (1, 1)
    monkeypatch.setattr(auto, "time_in_turns", None)  # nothing is timed again
    assert open_for(LONG).engine == "fast"
    assert (fast.built, slow.built) == (1, 1)
    assert len(entries()) == 2  # the choice, and what the winner built


def test_engines_that_come_close_to_the_fastest_are_timed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = {"first": [1.0, 3.0], "second": [1.1, 0.9], "far": [2.0]}
    taken: dict[str, int] = dict.fromkeys(seconds, 0)

    def timed(runners: Any, *given: Any, **options: Any) -> dict[str, list[float]]:
        for name in runners:
            taken[name] += 1
        return {name: [seconds[name][taken[name] - 1]] * taken[name] for name in runners}

    monkeypatch.setattr(auto, "time_in_turns", timed)
    plan = plan_of(small_model(), Job(output="scores", batch_size=6))
    trial = auto.Trial(ModelGraph(small_model(), plan), 1.0, 100.0, perf_counter() + 100.0)
    speeds = auto.time_runners(dict.fromkeys(seconds, EagerRunner), trial)  # type: ignore[arg-type]
    assert taken == {"first": 2, "second": 2, "far": 1}
    assert speeds == {"first": 2.0, "second": pytest.approx(6 / 0.9), "far": 3.0}


def test_engines_that_are_close_are_not_timed_again_without_time_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[list[str]] = []

    def timed(runners: Any, *given: Any, **options: Any) -> dict[str, list[float]]:
        calls.append(list(runners))
        return {name: [1.0] for name in runners}

    monkeypatch.setattr(auto, "time_in_turns", timed)
    plan = plan_of(small_model(), Job(output="scores", batch_size=6))
    trial = auto.Trial(ModelGraph(small_model(), plan), 1.0, 100.0, perf_counter() + 11.0)
    runners: Any = {"first": None, "second": None}  # a round of both takes 4 s
    auto.time_runners(runners, trial)
    assert calls == [["first", "second"]]


@pytest.mark.parametrize("batches", [16, 40, 100])
def test_choosing_computes_no_more_than_a_quarter_of_the_job(
    batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every batch is counted: of eager, and of the engine, which computes by eager here."""
    monkeypatch.setattr(auto, "time_in_turns", time_in_turns)
    compute, computed = EagerRunner.forward, 0

    def forward(self: EagerRunner, images: Any) -> Any:
        nonlocal computed
        computed += 1
        sleep(0.03)
        return compute(self, images)

    monkeypatch.setattr(EagerRunner, "forward", forward)
    use(monkeypatch, Double("same"))
    open_for(2 * batches)
    assert computed <= batches / 4


def test_a_job_of_many_callers_is_short_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Quick("fast"))
    monkeypatch.setattr(auto, "choose", None)
    model = small_model()
    plan = plan_of(model, Job(output="scores", batch_size=2), callers=4)
    assert open_runner(model, plan, images=2 * 4 * 16 - 1).engine == "eager"


def test_where_eager_is_fastest_it_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Double("slow", seconds=0.05)
    use(monkeypatch, slow)
    assert [open_for(LONG).engine for _ in range(2)] == ["eager", "eager"]
    assert slow.built == 1
    assert len(entries()) == 1  # the choice


@pytest.mark.parametrize("images", [None, 1, 31])
def test_a_short_job_looks_at_nothing(
    images: int | None, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    fast = Quick("fast")
    use(monkeypatch, fast)
    monkeypatch.setattr(auto, "choose", None)
    assert open_for(images).engine == "eager"
    assert not fast.built
    assert not cache.exists()


def test_what_building_costs_is_weighed_against_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_eager(monkeypatch, 0.005)
    fast = Quick("fast")
    use(monkeypatch, fast)
    monkeypatch.setattr(auto, "GRAPH_SECONDS", 1.0)  # for each layer
    assert open_for(1000).engine == "eager"
    assert not fast.built
    assert open_for(10**6).engine == "fast"


def test_a_known_winner_is_used_where_opening_it_pays() -> None:
    choice = auto.Choice("fast", {"eager": 10.0, "fast": 20.0}, open_seconds=2.0)
    assert choice.saves(100) == pytest.approx(3)
    assert choice.saves(30) < 0


def test_an_engine_that_computes_something_else_is_rejected_and_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slow_eager(monkeypatch, 0.005)
    wrong = Quick("wrong", answer=lambda values: values * 1.01)
    broken = Quick("broken", answer=lambda values: values * np.nan)
    right = Quick("right")
    use(monkeypatch, wrong, broken, right)
    with caplog.at_level(logging.WARNING):
        assert open_for(LONG).engine == "right"
    assert "engine wrong must compute what eager does, within 1e-04" in caplog.text
    assert "engine broken must compute" in caplog.text
    found = [find_entry(folder.name) for folder in entries()]
    [choice] = [one.facts for one in found if one is not None and "speeds" in one.facts]
    assert set(choice["rejected"]) == {"wrong", "broken"}
    with pytest.raises(UserError, match=r"engine wrong must compute .* use the engine eager"):
        open_for(1, engine="wrong")


def test_an_engine_that_fails_is_rejected_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Double):
        def build(self, graph: Any, folder: Path) -> None:
            raise ValueError("unsupported operator\nand a long tail")

    use(monkeypatch, Failing("failing"))
    with caplog.at_level(logging.WARNING):
        assert open_for(LONG).engine == "eager"
    assert "the engine failing failed: ValueError: unsupported operator" in caplog.text
    with pytest.raises(UserError, match="ValueError: unsupported operator: use the engine eager"):
        open_for(1, engine="failing")


def test_a_sentence_of_ours_rejects_an_engine_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Refusing(Double):
        def build(self, graph: Any, folder: Path) -> None:
            raise UserError("this family has no graph")

    use(monkeypatch, Refusing("refusing"))
    assert open_for(LONG).engine == "eager"
    assert "the engine refusing failed: this family has no graph" in caplog.text


def test_compiling_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match="engine compiled is not installed: install a C"):
        check_engine("compiled")


def test_what_did_not_fit_into_the_time_is_tried_for_a_longer_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow_eager(monkeypatch, 0.005)
    first, second = Double("first"), Quick("second")
    second.seconds_per_layer = 1.0
    use(monkeypatch, first, second)
    monkeypatch.setattr(auto, "MAX_SECONDS", 0.5)
    assert open_for(LONG).engine != "second"
    assert not second.built
    monkeypatch.setattr(auto, "MAX_SECONDS", 1000.0)
    assert open_for(LONG).engine == "second"


def test_what_never_fits_is_not_tried_at_every_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would seem to fit, until there is no time left for timing."""
    first, second = Double("first"), Double("second")
    plan = plan_of(small_model(), Job(output="scores", batch_size=2))
    second.seconds_per_layer = 1.9 / ModelGraph(small_model(), plan).layers
    use(monkeypatch, first, second)
    monkeypatch.setattr(auto, "MAX_SECONDS", 2.0)
    tries = 0
    try_engines = auto.try_engines

    def count(*given: Any) -> Any:
        nonlocal tries
        tries += 1
        return try_engines(*given)

    monkeypatch.setattr(auto, "try_engines", count)
    for seconds, expected in ((2.0, 1), (2.0, 1), (3.0, 1), (4.0, 2), (4.0, 2)):
        monkeypatch.setattr(auto, "MAX_SECONDS", seconds)
        open_for(LONG)
        assert tries == expected
    assert second.built == 1


def test_what_was_built_before_is_kept_though_it_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_eager(monkeypatch, 0.005)
    fast, slow = Quick("fast"), Double("slow", seconds=0.02)
    use(monkeypatch, slow, fast)
    open_for(1, engine="slow")
    assert open_for(LONG).engine == "fast"
    open_for(1, engine="slow")
    assert slow.built == 1


def test_ctrl_c_while_trying_leaves_complete_entries_only(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    class Stopped(Double):
        def build(self, graph: Any, folder: Path) -> None:
            super().build(graph, folder)
            raise KeyboardInterrupt

    use(monkeypatch, Stopped("stopped"))
    with pytest.raises(KeyboardInterrupt):
        open_for(LONG)
    assert not list((cache / "engines").iterdir())


def test_an_observed_model_is_computed_by_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Quick("fast"))
    model = small_model()
    with capture(model) as maps:
        opened = open_for(LONG, model)
        assert opened.engine == "eager"
        opened.run(torch.zeros(opened.plan.shape))
        with pytest.raises(UserError, match="engine fast cannot be used: hooks"):
            open_for(LONG, model, engine="fast")
    assert maps


def test_other_precisions_and_sizes_are_computed_by_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Quick("fast"))
    double = small_model().double()
    assert open_for(LONG, double).engine == "eager"
    with pytest.raises(
        UserError, match=r"precision torch\.float64, other engines compute in float32"
    ):
        open_for(LONG, double, engine="fast")
    other = small_model()
    how = replace(other.passport.preprocessing, size=(8, 8))
    other.passport = replace(other.passport, preprocessing=how)
    assert open_for(LONG, other).engine == "eager"


def test_a_batch_that_is_not_full_is_filled_up(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []

    def note_shape(values: np.ndarray) -> np.ndarray:
        shapes.append(values.shape)
        return values

    use(monkeypatch, Double("fast", answer=note_shape))
    opened = open_for(LONG, engine="fast")
    images = torch.randn(1, *opened.plan.shape[1:])
    found = opened.compute(images)
    assert shapes[-1] == (2, 5)
    expected = EagerRunner(small_model(), "logits")(images)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_names_of_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"unknown engine 'openvno', did you mean openvino\?"):
        check_engine("openvno")
    with pytest.raises(UserError, match="engine ray computes for predict and embed alone"):
        check_engine("ray")
    with pytest.raises(UserError, match="engine must be a name, got 3"):
        split_ray(3)  # type: ignore[arg-type]  # a mistake
    with pytest.raises(UserError, match="name their engine"):
        split_ray("ray:auto")
    missing = Double("missing")
    missing.modules = ("vitrail_is_not_this",)
    use(monkeypatch, missing)
    with pytest.raises(UserError, match=r"missing is not installed: pip install 'vitrail\[fast\]'"):
        check_engine("missing")
    assert open_for(LONG).engine == "eager"
