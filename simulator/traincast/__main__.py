"""The installed command, and `python -m traincast`."""

import sys

INTERRUPTED = 130
"""Exit code of a program that Ctrl-C ended: 128 + SIGINT."""


def main() -> int:
    """Runs the command line; Ctrl-C ends it quietly, also while it is still importing."""
    try:
        from traincast.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
