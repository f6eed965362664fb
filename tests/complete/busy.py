"""``make test`` of a clean clone of HEAD, while another process keeps one core busy.

usage: python -m tests.complete.busy [--junitxml FILE] [PYTEST-ARGUMENT ...]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BUSY = "while True: pass"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--junitxml", type=Path)
    options, arguments = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="sparkmirror-busy-") as directory:
        clone = Path(directory) / "clone"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        for verb in ("install", "kerberos", "promtool"):
            subprocess.run(["make", verb], cwd=clone, check=True)
        with subprocess.Popen([sys.executable, "-c", _BUSY]) as busy:
            try:
                words = [f"ARGS={' '.join(arguments)}"] if arguments else []
                code = subprocess.run(["make", "test", *words], cwd=clone, check=False).returncode
            finally:
                busy.kill()
        if options.junitxml:
            shutil.copy(clone / "artifacts" / "junit.xml", options.junitxml)
    return code


if __name__ == "__main__":
    sys.exit(main())
