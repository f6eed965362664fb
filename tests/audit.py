"""``make audit``: known faults of what is installed, and ruff's security rules on the product.

1. The lock files and the lowest versions that pyproject.toml allows, against
   ``tests/advisories.toml``: works offline.
2. pip-audit on the lock files, against the registry's database. Where that cannot be reached it is
   said: the registry behind a company's mirror often has packages only. ``--online`` makes that a
   failure.
3. ruff's S rules on ``src``, without a rule or file that is left out: each exception stands in its
   line. That includes assert (S101), which ``python -O`` takes out.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
LOCKS = (
    *("requirements.lock", "requirements-build.lock"),
    *("requirements-uv.lock", "requirements-kerberos.lock", "requirements-run.lock"),
)
PIP_AUDIT = "pip-audit==2.10.1"
_NO_REASON = re.compile(r"#\s*noqa(?!:)|#\s*ruff:\s*noqa")


def locked(lock: str) -> Iterator[tuple[str, Version]]:
    """Name and version of all that ``lock`` installs."""
    for match in re.finditer(r"(?m)^([a-z0-9-]+)==([\w.]+)", (ROOT / lock).read_text("utf-8")):
        yield match[1], Version(match[2])


def floors(text: str) -> Iterator[tuple[str, Version]]:
    """Name and lowest version of each requirement in a pyproject.toml."""
    project = tomllib.loads(text)
    groups = [
        project["build-system"]["requires"],
        project["project"]["dependencies"],
        *project["project"]["optional-dependencies"].values(),
        *project["dependency-groups"].values(),
    ]
    for requirement in (Requirement(one) for group in groups for one in group):
        lowest = [one.version for one in requirement.specifier if one.operator in ("==", ">=")]
        if len(lowest) != 1:
            raise SystemExit(f"{requirement}: name the lowest version in pyproject.toml")
        yield requirement.name.lower(), Version(lowest[0])


def faulty(found: Iterator[tuple[str, Version]], where: str) -> list[str]:
    """A line for each of ``found`` that the list of advisories knows."""
    advisories = tomllib.loads((ROOT / "tests/advisories.toml").read_text("utf-8"))["fault"]
    return [
        f"{where}: {name} {version} has a known fault ({one['what']}): use {one['before']} or newer"
        for name, version in found
        for one in advisories
        if one["package"] == name and version < Version(one["before"])
    ]


def security_rules() -> list[str]:
    """What ruff's S rules find in ``src``."""
    ruff = subprocess.run(
        [
            *(sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache"),
            *("--select", "S", "--output-format", "concise", "src"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found = [] if ruff.returncode == 0 else (ruff.stdout + ruff.stderr).splitlines()
    for path in sorted((ROOT / "src").rglob("*.py")):
        source, where = path.read_text("utf-8"), str(path.relative_to(ROOT))
        for number, line in enumerate(source.splitlines(), 1):
            if _NO_REASON.search(line):
                found.append(f"{where}:{number}: a noqa without a rule hides everything")
    return found


def database(lock: str) -> tuple[list[str], list[str]]:
    """(known faults, packages that the database could not be asked about), from pip-audit."""
    done = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("uvx")), PIP_AUDIT, "--no-deps", "--disable-pip"),
            *("--progress-spinner", "off", "--format", "json", "-r", str(ROOT / lock)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return [], [(done.stderr.strip().splitlines() or ["pip-audit says nothing"])[-1]]
    faults = [
        f"{lock}: {one['name']} {one['version']}: {fault['id']}, mended in "
        f"{', '.join(fault['fix_versions']) or 'no version yet'}"
        for one in packages
        for fault in one.get("vulns", ())
    ]
    return faults, [one["name"] for one in packages if "skip_reason" in one]


def main(arguments: list[str]) -> int:
    """Print what was found; 1 when there is anything."""
    parser = argparse.ArgumentParser(prog="make audit", description=__doc__)
    parser.add_argument("--online", action="store_true", help="the registry's database must answer")
    parser.add_argument("--offline", action="store_true", help="do not ask it")
    options = parser.parse_args(arguments)
    versions = {lock: list(locked(lock)) for lock in LOCKS}
    versions["pyproject.toml"] = list(floors((ROOT / "pyproject.toml").read_text("utf-8")))
    found = [line for where, ours in versions.items() for line in faulty(iter(ours), where)]
    found += security_rules()
    as_of = tomllib.loads((ROOT / "tests/advisories.toml").read_text("utf-8"))["as_of"]
    count = sum(map(len, versions.values()))
    print(
        f"lock files and lowest versions: {count} versions compared with tests/advisories.toml "
        f"of {as_of}"
    )
    print("ruff's S rules: on all of src")
    if options.offline:
        print("the registry's database of faults: not asked")
    else:
        silent: list[str] = []
        for lock in LOCKS:
            faults, unknown = database(lock)
            found += faults
            silent += unknown
        if silent:
            line = f"the registry's database of faults does not tell of {len(silent)} packages"
            print(f"{line}; for these only the list above counts: {', '.join(silent[:3])} …")
            found += [line] if options.online else []
        else:
            print("the registry's database of faults: asked about all packages")
    for line in found:
        print(f"FOUND {line}")
    print("audit:", f"{len(found)} to mend" if found else "nothing to mend")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
