"""Fine-tune a checkpoint on a folder of images, and say how good it is.

    python examples/fine_tune_a_folder.py photos --start B_16.npz
    python examples/fine_tune_a_folder.py photos                    # a small model from scratch

The folder has one folder for each class. The run, its report and the model are in runs/.
"""

import argparse

import vitrail as vt


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tune a checkpoint on a folder of images.")
    parser.add_argument("folder", help="one folder for each class, or train/ and val/ with these")
    parser.add_argument("--start", help="checkpoint: a file, a directory, or owner/name on the hub")
    parser.add_argument("--epochs", type=float, help="by default chosen from the number of images")
    parser.add_argument("--out", default="runs/tuned")
    options = parser.parse_args()

    for line in vt.doctor(options.folder).text().splitlines():
        print("  ", line)

    run = vt.train(
        options.folder, start=options.start, epochs=options.epochs, out=options.out, resume="auto"
    )
    print(f"{run.metric} {run.score:.3f} at step {run.best_step} of {run.total}: {run.best}")

    result = vt.evaluate(run.best, options.folder)
    low, high = result.intervals["accuracy"]
    print(f"accuracy {result.accuracy:.3f}, with 95 % confidence {low:.3f} to {high:.3f}")
    print("page:", result.save_html(f"{options.out}/evaluation.html", overwrite=True))


if __name__ == "__main__":
    main()
