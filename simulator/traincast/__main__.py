"""`python -m traincast`: the same as the installed command."""

import sys

from traincast.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
