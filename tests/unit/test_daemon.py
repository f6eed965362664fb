"""Spark's Python daemon: nobody else reaches it, whatever directory its socket is in."""

from __future__ import annotations

import os
import stat
import struct
import subprocess
import sys
from pathlib import Path

from sparkmirror.data.daemon import _with_umask


def test_only_its_user_may_write_to_its_socket(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    daemon = subprocess.Popen(
        [sys.executable, "-m", "sparkmirror.data.daemon", "pyspark.sql.worker.create_data_source"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={
            **os.environ,
            "PYTHON_UNIX_DOMAIN_ENABLED": "true",
            "PYTHON_WORKER_FACTORY_SOCK_DIR": str(tmp_path),
        },
        umask=0,
    )
    assert daemon.stdout is not None
    (size,) = struct.unpack(">i", daemon.stdout.read(4))
    door = Path(daemon.stdout.read(size).decode())
    mode = door.stat().st_mode
    daemon.communicate(timeout=60)
    assert door.parent == tmp_path
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o700


def test_what_a_worker_makes_has_the_modes_of_the_process_that_was_started() -> None:
    def umask() -> int:
        mask = os.umask(0)
        os.umask(mask)
        return mask

    before = os.umask(0o027)
    try:
        main = _with_umask(umask)
        os.umask(0o077)
        assert main() == 0o027
    finally:
        os.umask(before)
