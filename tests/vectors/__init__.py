"""Golden data: what the Java classes answer to the same input.

``policies``, ``should_replicate``, ``filters``, ``mm_config`` and ``mm1_include`` come from
MirrorMaker 2 4.3.0 and MirrorMaker 1 3.9.1, ``scoping`` from MirrorMakerConfig and
MirrorSourceConfig 4.3.0 with generated files, ``java_regex`` and ``java_properties`` from
``java.util`` (JDK 17), ``jaas`` from Kafka's JaasConfig 4.3.0 and the JDK's own, the
``*_keys`` files from the configuration definitions of 4.3.0 (``client_keys_new_in_4.4.0``: what
those of 4.4.0's clients add to it), ``error_codes`` from 4.4.0's ``Errors`` (code, name, and
whether its exception is a RetriableException, an AuthorizationException, an
AuthenticationException), ``sticky`` from 4.4.0's StickyAssignor with generated groups,
``old_client_keys`` from the definitions of 0.7.2 to 0.11.0.3 (what they were read from stands in
it). ``smts`` comes from the source task of
MirrorMaker 2, from Connect and its single message transforms 4.3.0 (`tests.vectors.java.smts`).
"""

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def load(name: str) -> Any:
    """The content of ``name``.json."""
    return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))


def table(name: str) -> dict[str, list[list[str]]]:
    """The rows (name, type, default, …) of ``name``.tsv by section."""
    sections: dict[str, list[list[str]]] = {}
    for line in (HERE / f"{name}.tsv").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            sections[line[3:]] = rows = []
        elif line:
            rows.append(line.split("\t"))
    return sections
