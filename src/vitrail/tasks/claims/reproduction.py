"""The result of `vitrail.reproduce`: a verdict with its findings, numbers, cost and page."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from vitrail.core.json_text import plain_values
from vitrail.core.processor import processor
from vitrail.evaluation.findings import HOW, Finding, Verdict, verdict_of
from vitrail.inference.engine import usable_threads
from vitrail.pages.reproduction import finding_text, reproduction_page
from vitrail.tasks.claims.claim import Claim, Evidence, Setting
from vitrail.tasks.claims.lab import Lab
from vitrail.tasks.html_record import HtmlRecord

RESULT = "result.json"
WORDS: dict[Verdict, str] = {
    "shown": "Every finding is as the paper has it.",
    "not shown at this scale": "No finding is outside of what the paper has, but the interval of "
    "at least one reaches beyond it.",
    "contradicted": "At least one finding is outside of what the paper has, at this scale.",
}


@dataclass(frozen=True, kw_only=True, repr=False)
class Reproduction(HtmlRecord):
    """A claim that was put to the test: `verdict` is shown, not shown at this scale or
    contradicted, by its `findings`."""

    claim: Claim
    setting: Setting
    evidence: Evidence
    runs: tuple[dict[str, Any], ...]
    seconds: dict[str, float]
    machine: str
    command: str

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.evidence.findings)

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.evidence.findings

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON: what `vitrail reproduce CLAIM --json` prints."""
        out, evidence = self.setting.out, self.evidence
        facts = {
            **self.claim.facts(),
            "caveat": self.claim.caveat,
            "verdict": self.verdict,
            "in_words": WORDS[self.verdict],
            "findings": [finding_facts(one) for one in evidence.findings],
            "how": HOW,
            "command": self.command,
            "data": self.setting.data,
            "scale": asdict(self.setting.scale),
            "seeds": self.setting.seeds,
            "tables": [asdict(one) for one in evidence.tables],
            "drawings": [asdict(one) for one in evidence.drawings],
            "notes": evidence.notes,
            "details": evidence.details,
            "runs": self.runs,
            "seconds": {"training": sum(one["seconds"] for one in self.runs), **self.seconds},
            "machine": self.machine,
            "version": version("vitrail"),
            "out": str(out),
            "report": str(out / "report.html"),
        }
        return dict(plain_values(facts))

    def html(self) -> str:
        """The page: verdict, claim and source, findings, numbers, and what was run."""
        return reproduction_page(self.facts())

    def __repr__(self) -> str:
        lines = [f"Reproduction({self.claim.name}: {self.verdict})"]
        lines += [finding_text(finding_facts(one)) for one in self.findings[:4]]
        if len(self.findings) > 4:
            lines.append(f"… {len(self.findings) - 4} more findings")
        return "\n".join(lines)


def finding_facts(finding: Finding) -> dict[str, Any]:
    """A finding in plain values, with its verdict; an end that is open is None."""
    return dict(plain_values({**asdict(finding), "verdict": finding.verdict}))


def reproduction_of(claim: Claim, lab: Lab, evidence: Evidence, command: str) -> Reproduction:
    """The record of runs that are finished and judged."""
    left_out = ("run", "test_digest", "processor", "interval", "split")
    runs = tuple(
        {name: value for name, value in one.facts().items() if name not in left_out}
        for one in lab.results
    )
    threads = {one.threads for one in lab.results} or {usable_threads(lab.place.threads)}
    machines = {one.processor for one in lab.results} or {processor().partition(":")[0]}
    counted = " or ".join(f"{n} thread{'' if n == 1 else 's'}" for n in sorted(threads))
    return Reproduction(
        claim=claim,
        setting=lab.setting,
        evidence=evidence,
        runs=runs,
        seconds=dict(lab.seconds),
        machine=f"{', '.join(sorted(machines))}; {counted}",
        command=command,
    )
