"""Take the most confident mistakes of a model, and show the evidence for both classes.

    python examples/explain_a_mistake.py runs/photos/best photos

Writes two maps for each mistake, for the predicted class and for the true one, into mistakes/.
"""

import argparse
from pathlib import Path

import vitrail as vt
from vitrail.evaluation.mistakes import mistakes


def main() -> None:
    parser = argparse.ArgumentParser(description="Explain the most confident mistakes of a model.")
    parser.add_argument("model", help="a checkpoint")
    parser.add_argument("data", help="a folder of images that it was not trained on")
    parser.add_argument("--count", type=int, default=3, help="how many mistakes")
    parser.add_argument("--out", type=Path, default=Path("mistakes"))
    options = parser.parse_args()

    model = vt.load(options.model)
    result = vt.evaluate(model, options.data)
    print(result)
    options.out.mkdir(parents=True, exist_ok=True)
    for number, one in enumerate(mistakes(result.outputs)):
        if number == options.count:
            break
        image = result.source.name(one.index)
        (truth, _), (predicted, score) = one.truth[0], one.predicted[0]
        print(f"{image}: {truth}, predicted as {predicted} ({score:.0%})")
        for target in (predicted, truth):
            why = vt.explain(model, image, target=target)
            why.overlay().save(options.out / f"{number}-{target}.png")
            print(f"  evidence for {target}: {why.verdict.sentence}")


if __name__ == "__main__":
    main()
