"""The `vitrail` command, also as `python -m vitrail`: Ctrl-C is heard while it is being loaded."""

import sys


def main() -> int:
    """Run the command line of this process and return its exit code."""
    try:
        from vitrail.cli.exported import main as predict
        from vitrail.cli.exported import parse_exported

        words = sys.argv[1:]
        if (options := parse_exported(words)) is not None:
            return predict(options, words)
        from vitrail.cli.app import main as run

        return run(words)
    except KeyboardInterrupt:  # before a verb, which has a line of its own for it
        sys.stderr.write("vitrail: stopped by Ctrl-C\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
