"""Embed a folder of images, find what looks like one of them, and list near duplicates.

    python examples/embed_and_search.py B_16.npz photos cat.jpg

No labels and no training. The features are in vectors/, as Parquet: run it again after adding
images, and only the new ones are computed. Needs pip install 'vitrail[parquet]'.
"""

import argparse

import vitrail as vt


def main() -> None:
    parser = argparse.ArgumentParser(description="Search a folder of images by example.")
    parser.add_argument("model", help="a checkpoint: its features decide what counts as similar")
    parser.add_argument("folder", help="images, in any number of folders")
    parser.add_argument("query", help="an image")
    parser.add_argument("--out", default="vectors")
    parser.add_argument("-k", type=int, default=5, help="how many neighbours")
    options = parser.parse_args()

    index = vt.embed(options.model, options.folder, out=options.out)
    print(index)
    for match in index.search(options.query, k=options.k).matches:
        print(f"{match.cosine:.3f}  {match.id}")
    found = index.duplicates()
    print(f"{len(found.pairs)} pairs are nearly the same (cosine of {found.threshold:.6g} or more)")


if __name__ == "__main__":
    main()
