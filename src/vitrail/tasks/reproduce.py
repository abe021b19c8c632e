"""`vitrail.reproduce`: a claim of a paper put to the test on this machine."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, Unpack, overload

from vitrail.core.errors import UserError
from vitrail.models.config import Config
from vitrail.models.measure import Measure, measure
from vitrail.tasks.claims.catalogue import ClaimList, find_claim
from vitrail.tasks.claims.claim import (
    Claim,
    Pretraining,
    ScaleName,
    Setting,
    Stage,
    bare_setting,
    make_setting,
)
from vitrail.tasks.claims.lab import Lab, steps_of
from vitrail.tasks.claims.reproduction import RESULT, Reproduction, reproduction_of
from vitrail.tasks.compare_plan import Cell
from vitrail.tasks.compare_runs import Place, StoppedError, read_result
from vitrail.tasks.dry_run import DryRun
from vitrail.tasks.html_record import PAGE
from vitrail.tasks.keywords import ReproduceKeywords
from vitrail.tasks.progress import OnProgress, silent
from vitrail.tasks.results import Results

VERB = "reproduce"


@overload
def reproduce(
    claim: None = None, *, dry_run: bool = False, **options: Unpack[ReproduceKeywords]
) -> ClaimList: ...
@overload
def reproduce(
    claim: str, *, dry_run: Literal[False] = False, **options: Unpack[ReproduceKeywords]
) -> Reproduction: ...
@overload
def reproduce(
    claim: str, *, dry_run: bool, **options: Unpack[ReproduceKeywords]
) -> Reproduction | DryRun: ...
def reproduce(
    claim: str | None = None,
    *,
    data: str | Path | None = None,
    weights: str | Path | None = None,
    seeds: int | Sequence[int] | None = None,
    scale: ScaleName = "quick",
    device: str = "auto",
    threads: int | None = None,
    out: str | Path | None = None,
    dry_run: bool = False,
    on_progress: OnProgress = silent,
) -> Reproduction | ClaimList | DryRun:
    """Put a claim of a paper to the test: train what it compares, measure, and judge by intervals
    whether it is shown, not shown at this scale, or contradicted. Without a claim, list them.

    `seeds` is how many (default 3), or a list. `scale` is "quick" (minutes) or "full" (hours). A
    claim about public weights needs `data`, the validation images of ImageNet-1k in a folder for
    each class, and a network, or the `weights` as a file. `out` (default runs/reproduce-CLAIM) gets
    the runs, report.html and result.json; what is finished there is never computed again. `dry_run`
    lists the runs.

    >>> reproduce().claims[0].name
    'data-scale'
    >>> planned = reproduce("hybrid", data="digits", seeds=1, dry_run=True)
    >>> [run["run"] for run in planned.details["runs"]][:2]
    ['small-ViT-1-seed0', 'small-hybrid-1-seed0']
    """
    if claim is None:
        return ClaimList()
    chosen = find_claim(claim)
    target = Path(out or f"runs/reproduce-{claim}")
    source = choose_data(chosen, data)
    check_weights(chosen, weights)
    make = make_setting if chosen.data else bare_setting
    # absolute: runs begin from checkpoints in it, wherever the same call comes from
    setting = make(source, seeds=seeds, scale=scale, out=target.resolve())
    setting = replace(setting, weights=None if weights is None else str(weights))
    Results(target, VERB, overwrite=True).check((PAGE, RESULT))
    refuse_other(target, chosen)
    stages = chosen.stages(setting)
    if dry_run:
        return dry_run_of(chosen, setting, stages, target)
    lab = Lab(setting, Place(device, threads), on_progress)
    try:
        lab.run(stages)
    except StoppedError:
        raise KeyboardInterrupt(
            f"Interrupted; {len(lab.results)} runs are finished. Resume with the same command: "
            f"they are in {target}"
        ) from None
    return judge(chosen, lab, target, command_of(chosen, setting, weights, target))


def judge(claim: Claim, lab: Lab, out: Path, command: str) -> Reproduction:
    """Judge the runs, and write the page and the result."""
    evidence = claim.judge(lab)
    found = reproduction_of(claim, lab, evidence, command)
    found = replace(found, setting=replace(found.setting, out=out))
    results = Results(out, VERB, overwrite=True)
    results.check((PAGE, RESULT))
    with results.draft() as draft:
        found.save_report(draft, RESULT)
    return found


def choose_data(claim: Claim, data: str | Path | None) -> str:
    """The data of a call, by default that of the claim."""
    if data is not None and claim.data == "":
        raise UserError(f"{claim.name} reads no data: leave data out")
    if data is None and claim.data is None:
        raise UserError(
            f"{claim.name} needs data: give data=DIR, the validation images of ImageNet-1k with a "
            "folder for each class"
        )
    return str(data) if data is not None else str(claim.data)


def check_weights(claim: Claim, weights: str | Path | None) -> None:
    if weights is not None and claim.data is not None:
        raise UserError(f"{claim.name} trains its models: leave weights out")


def refuse_other(out: Path, claim: Claim) -> None:
    """Refuse a directory with the result of another claim."""
    try:
        before = json.loads((out / RESULT).read_text(encoding="utf-8"))["claim"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if before != claim.name:
        raise UserError(f"{out}: holds the result of {before}: choose another out")


def command_of(claim: Claim, setting: Setting, weights: str | Path | None, out: Path) -> str:
    """The command line that gives this result."""
    words = ["vitrail", VERB, claim.name]
    if setting.data != claim.data:
        words += ["--data", setting.data]
    if weights is not None:
        words += ["--weights", str(weights)]
    if claim.data:
        words += ["--seeds", ",".join(map(str, setting.seeds)), "--scale", setting.scale.name]
    return shlex.join([*words, "--out", out.name])


def dry_run_of(claim: Claim, setting: Setting, stages: Sequence[Stage], out: Path) -> DryRun:
    """Every run with its model and length; nothing is trained."""
    runs = [run_facts(setting, stage, cell) for stage, cell in steps_of(stages)]
    minutes = claim.facts()["minutes"].get(setting.scale.name)
    details: dict[str, Any] = {
        "claim": claim.name,
        "sentence": claim.sentence,
        "data": setting.data,
        "runs": runs,
        "finished": sum(run["finished"] for run in runs),
        "minutes": minutes,
        "files": [PAGE, RESULT],
    }
    return DryRun(VERB, str(out), details)


def run_facts(setting: Setting, stage: Stage, cell: Cell | None) -> dict[str, Any]:
    """A run in plain values; its model is built without memory, and counted."""
    if isinstance(stage, Pretraining):
        shown = {"run": stage.name, "model": stage.model, "objective": stage.objective}
        done = (setting.out / "runs" / stage.name / "outcome.json").is_file()
        return {**shown, "steps": stage.steps, "finished": done}
    assert cell is not None
    config = cell.model.config(cell.size)
    cost = counted(config)
    return {
        "run": cell.name,
        "model": cell.model.model,
        "objective": "supervised",
        "steps": stage.steps,
        "params": cost.params,
        "macs": cost.macs,
        "finished": read_result(setting.out, cell) is not None,
    }


@cache
def counted(config: Config) -> Measure:
    """Parameters and multiply-adds of a model that several runs have."""
    return measure(config)
