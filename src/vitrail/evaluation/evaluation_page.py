"""An evaluation as HTML: one file with its drawings and pictures inside, and nothing that must
run."""

from collections.abc import Sequence

from vitrail.core.passport import Preprocessing
from vitrail.data.findings import count
from vitrail.data.findings_page import PAGE, bar, shown
from vitrail.evaluation import curves, diagrams
from vitrail.evaluation.calibration import Reliability
from vitrail.evaluation.corruptions import CORRUPTIONS, DIFFERS
from vitrail.evaluation.curves import SHARES, percent, short_number
from vitrail.evaluation.diagrams import corruption_table, reliability_diagram
from vitrail.evaluation.evaluation import Evaluation, SizeResult
from vitrail.evaluation.intervals import LEVEL, METHODS
from vitrail.evaluation.judged_page import (
    STYLE,
    classes,
    confusions,
    data_uri,
    facts_of,
    passed_over,
    wide_table,
    worst,
)
from vitrail.evaluation.robustness import EXAMPLE_SEVERITY, Robustness

MOST_MISTAKES = 12  # pictures in each of the two galleries

# Every headline number: its title, what it means, and whether it is told in percent.
MEANINGS: dict[str, tuple[str, str, bool]] = {
    **{name: (*told, True) for name, told in SHARES.items()},
    "f1": ("Mean F1", "of precision and recall together, the mean over classes", True),
    "ece": (
        "Calibration error",
        "how far confidence and the share that is right lie apart, on average",
        True,
    ),
    "nll": ("Negative log-likelihood", "of the truth; 0 is perfect", False),
    "brier": ("Brier score", "squared distance of probabilities and truth; 0 is perfect", False),
}


def evaluation_page(found: Evaluation) -> str:
    """The whole page."""
    outputs = found.outputs
    parts = {
        "calibration": ("Calibration", calibration(found)),
        "confusions": ("Confusions", confusions(outputs)),
        "classes": ("Classes", classes(outputs)),
        "surest": ("Surest mistakes", worst(outputs, found.source, found.data, most=MOST_MISTAKES)),
        "worst": ("Worst mistakes", worst_ones(found)),
        "corruptions": ("Corrupted images", corruptions(found)),
        "resolutions": ("Image sizes", sizes(found.resolutions, "image size")),
        "patches": ("Patch sizes", sizes(found.patch_sizes, "patch size")),
        "passed-over": ("Images passed over", passed_over(outputs.broken)),
        "how": ("How it was measured", how(found)),
    }
    told = {name: part for name, part in parts.items() if part[1]}
    links = "".join(f'<a href="#{name}">{title}</a>' for name, (title, _) in told.items())
    sections = "".join(
        f'<section class="report" id="{name}"><h2>{title}</h2>\n{body}</section>\n'
        for name, (title, body) in told.items()
    )
    head = f'<header class="report">{heading(found)}<nav>{links}</nav></header>\n'
    style = f"<style>{STYLE}{curves.STYLE}{diagrams.STYLE}</style>\n"
    page = PAGE.format(title=f"{shown(found.title)}: evaluation", body=f"{style}{head}{sections}")
    # a name that is not valid Unicode must never keep the page from being written
    return page.encode("utf-8", "backslashreplace").decode()


def heading(found: Evaluation) -> str:
    outputs = found.outputs
    cards = ""
    for name, value in found.metrics.items():
        title, meaning, share = MEANINGS[name]
        cards += (
            f'<div class="card score">{title}<b>{told_number(value, share=share)}</b>'
            f"<small>{told_interval(found.intervals.get(name), share=share)}</small>"
            f'<br><small class="soft">{meaning}</small></div>'
        )
    listed = "".join(f"<li>{shown(note)}</li>" for note in found.notes)
    facts = {
        "images": f"{outputs.images:,}",
        "classes": f"{len(outputs.labels):,}",
        "could not be read": f"{len(outputs.broken):,}",
        "seed": str(found.seed),
    }
    return (
        f"<h1>{shown(found.title)}</h1><p><code>{shown(found.model)}</code>, judged on "
        f"{count(outputs.images, 'image')} of <code>{shown(outputs.split)}</code> of "
        f'<code>{shown(found.data)}</code>.</p>\n<div class="cards">{cards}</div>\n'
        f"{f'<ul>{listed}</ul>' if listed else ''}{facts_of(facts)}\n"
    )


def told_number(value: float, *, share: bool) -> str:
    return percent(value) if share else short_number(value)


def told_interval(interval: tuple[float, float] | None, *, share: bool) -> str:
    """
    >>> told_interval((0.91, 0.97), share=True)
    '91.0% to 97.0%'
    """
    if interval is None:
        return ""
    return " to ".join(told_number(end, share=share) for end in interval)


def calibration(found: Evaluation) -> str:
    """The reliability diagram, before and after the temperature."""
    tempered = found.temperature
    what = (
        "each label of each image is an answer, its confidence the probability that it is there"
        if found.outputs.multi_label
        else "an answer's confidence is the probability of what was said"
    )
    pictures = pictured("As the model answers", found.reliability)
    values = found.metrics
    rows = [("as the model answers", values["ece"], values["nll"], values["brier"])]
    after = ""
    if tempered is not None:
        pictures += pictured(f"At temperature {tempered.temperature:.3g}", tempered.reliability)
        rows.append(
            (
                f"at temperature {tempered.temperature:.4g}",
                tempered.reliability.ece,
                tempered.nll,
                tempered.brier,
            )
        )
        sure = "too sure of itself" if tempered.temperature > 1 else "not sure enough"
        after = (
            f"<p>Dividing all logits by {tempered.temperature:.4g} gives the lowest negative "
            f"log-likelihood: the model is {sure}. It changes no answer. It was fitted on "
            f"{shown(tempered.fitted_on)}, so that no image is judged by a temperature that it "
            f"chose.{' It lies at the edge of what was tried.' if tempered.at_limit else ''}</p>\n"
        )
    cells = "".join(
        f'<tr><td>{told}</td><td class="number">{percent(error)}</td><td class="number">'
        f'{short_number(loss)}</td><td class="number">{short_number(brier)}</td></tr>'
        for told, error, loss, brier in rows
    )
    heads = ("", "#expected calibration error", "#negative log-likelihood", "#Brier score")
    return (
        f"<p>Of answers with a confidence of 80%, 80% should be right: {what}. There are 15 bins "
        "of equal width. Red: overconfident. Green: underconfident. Below, how many answers there "
        "are.</p>\n"
        f'<div class="pair">{pictures}</div>\n{after}{wide_table(heads, cells)}'
    )


def pictured(title: str, bins: Reliability) -> str:
    return (
        f'<figure class="card"><figcaption><b>{title}</b><span class="soft">error '
        f"{percent(bins.ece)}</span></figcaption>{reliability_diagram(bins, title)}</figure>\n"
    )


def worst_ones(found: Evaluation) -> str:
    """Only where they can be others than the surest."""
    if len(found.outputs.wrong) <= MOST_MISTAKES:
        return ""
    return worst(found.outputs, found.source, found.data, order="loss", most=MOST_MISTAKES)


def corruptions(found: Evaluation) -> str:
    known = found.robustness
    if known is None:
        return ""
    relative = (
        "There is no error on clean images to divide by."
        if known.relative_error is None
        else f"Divided by the error on clean images that is {known.relative_error:.2f}."
    )
    ends = f" ({told_interval(known.interval, share=True)})" if known.interval else ""
    differs = "".join(f"<li>{sentence}</li>" for sentence in DIFFERS)
    title = MEANINGS[known.metric][0]
    return (
        f"<p>{title} under 15 corruptions at 5 severities (arXiv:1903.12261, constants for "
        f"{known.side} pixels), on {count(known.images, 'image')}: {percent(known.mean)}{ends} on "
        f"average, {percent(known.clean)} on the same images without. The mean error under "
        f"corruption is {percent(1 - known.mean)}. {relative} (The mCE of the paper divides by "
        "the errors of AlexNet instead: the two cannot be compared.)</p>\n"
        f'<div class="sideways" tabindex="0">{corruption_table(known)}</div>\n'
        f"<p>One image under each of them, at severity {EXAMPLE_SEVERITY}, as the model sees "
        "it:</p>"
        f'<div class="gallery">{examples(known)}</div>\n'
        f'<p class="soft">Where this differs from ImageNet-C and CIFAR-10-C:</p>'
        f'<ul class="soft">{differs}</ul>\n'
    )


def examples(known: Robustness) -> str:
    figures = ""
    for name, pixels in zip(CORRUPTIONS, known.examples, strict=True):
        uri = data_uri(pixels)
        tiny = ' class="tiny"' if uri.startswith("data:image/png") else ""
        figures += (
            f'<figure class="card"><img{tiny} src="{uri}" alt="{name}">'
            f"<figcaption>{name}</figcaption></figure>\n"
        )
    return figures


def sizes(rows: Sequence[SizeResult], what: str) -> str:
    if not rows:
        return ""
    cells = ""
    for row in rows:
        if row.value is None:
            cells += f"<tr><td>{row.size}</td><td></td><td></td><td></td>"
            cells += f"<td>{shown(row.problem or '')}</td></tr>\n"
            continue
        cells += (
            f'<tr><td>{row.size}</td><td class="number">{percent(row.value)}</td>'
            f'<td class="number">{told_interval(row.interval, share=True)}</td>'
            f'<td style="width:25%">{bar(round(1000 * row.value), 1000)}</td>'
            f"<td>{shown('; '.join(row.changes))}</td></tr>\n"
        )
    metric = next((row.metric for row in rows if row.metric), "accuracy")
    heads = (what, f"#{MEANINGS[metric][0].lower()}", "#interval", "", "what was done for it")
    return f"<p>The same weights, fitted and not trained again.</p>\n{wide_table(heads, cells)}"


def how(found: Evaluation) -> str:
    several = (
        "A label counts as said where its probability is above 0.5. Mean average precision and "
        "mean F1 are over classes that have images."
        if found.outputs.multi_label
        else "Mean F1 is over classes that have images."
    )
    return (
        f"<p>{told_preprocessing(found.preprocessing)}</p>\n"
        f"<p>Intervals of {LEVEL:.0%} confidence; of {found.resamples:,} bootstrap samples the "
        f"middle. {METHODS}, not class by class. They tell what "
        "another choice of images would change, not another training run. Where images are few, "
        "the calibration error is overestimated, and its interval with it.</p>\n"
        f"<p>{several} If these images also chose which weights are the best, expect a little "
        "less on new ones.</p>\n"
    )


def told_preprocessing(how: Preprocessing) -> str:
    """What a foreign file does not say is taken from its dialect: a person must be able to see."""
    mean, std = (", ".join(f"{value:g}" for value in values) for values in (how.mean, how.std))
    return (
        f"The model reads {how.size[0]} x {how.size[1]} pixels: images are {how.in_words()}, "
        f"brought to values from 0 to 1 and normalised by a mean of {mean} and a standard "
        f"deviation of {std}."
    )
