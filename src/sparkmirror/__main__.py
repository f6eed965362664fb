"""``python -m sparkmirror``: the ``sparkmirror`` command."""

import sys

from sparkmirror.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
