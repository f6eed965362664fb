"""Ships our code and its dependencies to the executors of a Spark cluster.

Executors need Python with PySpark's own requirements (pandas, pyarrow) in the version that the
driver has. Everything else that sparkmirror needs, itself included, travels as one archive that
Spark unpacks next to every executor.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import tarfile
from pathlib import Path

from sparkmirror.errors import MachineError

__all__ = ["SHIPPED", "python_archive"]

SHIPPED = ("sparkmirror", "kafka", "crc32c", "cramjam", "cryptography", "_cffi_backend")
"""Packages and modules that a plain PySpark installation lacks."""
_OPTIONAL = ("gssapi", "decorator")  # for Kerberos; shipped if they are installed
_UNPACKED = "sparkmirror-python"


def python_archive(directory: Path) -> dict[str, str]:
    """Write the archive into ``directory``; returns the Spark settings that ship and use it.

    Raises `MachineError` if a package cannot be found as files on this machine.
    """
    path = directory / f"{_UNPACKED}.tar.gz"
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        present = [name for name in _OPTIONAL if importlib.util.find_spec(name) is not None]
        for name in (*SHIPPED, *present):
            for place in [*_places(name), *_metadata(name)]:
                archive.add(place, arcname=place.name, filter=_without_caches)
    return {
        "spark.archives": f"{path.as_uri()}#{_UNPACKED}",
        "spark.executorEnv.PYTHONPATH": f"./{_UNPACKED}",
    }


def _places(name: str) -> list[Path]:
    spec = importlib.util.find_spec(name)
    if spec is not None and not spec.submodule_search_locations and spec.origin:
        return [Path(spec.origin)]
    if spec is None or not spec.submodule_search_locations:
        raise MachineError(
            f"the package {name} cannot be shipped to the cluster: it is not installed as files.",
            do="Install sparkmirror with pip into a virtual environment.",
        )
    package = Path(next(iter(spec.submodule_search_locations)))
    # Wheels with compiled parts keep their libraries in a directory beside them, with that name.
    libraries = package.parent / f"{name}.libs"
    return [package, libraries] if libraries.is_dir() else [package]


def _metadata(name: str) -> set[Path]:
    """The distribution's metadata directories: some packages look up their version there."""
    found = set()
    for distribution in importlib.metadata.packages_distributions().get(name, []):
        for file in importlib.metadata.files(distribution) or []:
            if file.name == "METADATA":
                found.add(Path(str(file.locate())).parent)
    return found


def _without_caches(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in entry.name else entry
