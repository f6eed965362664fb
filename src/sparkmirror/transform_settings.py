"""Settings of transforms: SQL, single message transforms, static tables, the schema registry."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = [
    "RegistrySettings",
    "SmtSettings",
    "TableSettings",
    "TransformSettings",
]


@dataclass(frozen=True, slots=True)
class SmtSettings:
    """A single message transform (SMT) of a MirrorMaker 2 file: one of ``transforms``.

    ``kind``: its class, without the package. ``regex``, ``replacement``: of RegexRouter.
    ``headers``: the names that DropHeaders or InsertHeader is about. ``predicate``: the class of
    its predicate, without the package; empty for none. ``argument``: the predicate's pattern or
    header. ``negate``: it applies where the predicate is false. ``topic_format``, ``time_format``:
    of TimestampRouter.
    """

    name: str
    kind: str
    regex: str = ""
    replacement: str = ""
    headers: tuple[str, ...] = ()
    predicate: str = ""
    argument: str = ""
    negate: bool = False
    topic_format: str = ""
    time_format: str = ""


@dataclass(frozen=True, slots=True)
class TableSettings:
    """A static table that transforms look up rows in.

    ``format``, ``path``, ``schema`` (as in ``id BIGINT, name STRING``; empty: that of the data) and
    ``options`` are those of Spark's reader; ``path`` is empty if the format needs none.
    """

    name: str
    format: str
    path: str = ""
    schema: str = ""
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def place(self) -> str:
        """From where it is read, as in the file."""
        return f"{self.format}:{self.path}" if self.path else self.format


@dataclass(frozen=True, slots=True)
class TransformSettings:
    """What happens to the records of some topics on the way (``sparkmirror.transform.NAME``).

    ``topics``: Java regexes that match whole names of source topics. ``where``, ``select``: Spark
    SQL, empty for "all records" and "all columns". ``functions``: ``module:function`` names of what
    registers further SQL functions. ``places``: where the file sets them, by option.
    ``steps``: instead of ``topics``, for the SQL of single message transforms: the numbers of those
    that apply. It processes the topics to which just these apply (`names.smts`).
    ``routes``: ``select`` chooses the records' topic or partition on the target.
    ``python``: ``module:function`` from DataFrame to DataFrame, instead of SQL. ``handler``:
    instead of both, ``module:name`` of a callable that gets one record at a time, and
    ``handler_args``: the text for it; None for none. ``tables``: what `lookup` finds; all
    transforms of a flow share them. ``compression``: the codec of what is written; empty: that of
    the source's batches.
    """

    name: str
    topics: tuple[str, ...]
    where: str = ""
    select: str = ""
    places: tuple[tuple[str, ...], ...] = ()
    steps: tuple[int, ...] = ()
    routes: bool = False
    python: str = ""
    functions: tuple[str, ...] = ()
    handler: str = ""
    handler_args: str | None = field(default=None, repr=False)
    tables: tuple[TableSettings, ...] = ()
    compression: str = ""

    def place(self, option: str) -> str:
        """Where the file sets ``option``, with the key: for errors."""
        return {one[0]: one[1] for one in self.places}.get(option, self.name)


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """The schema registry of a flow's transforms (``sparkmirror.registry``).

    ``urls``: without a slash at the end; empty: there is none. ``authorization``: the value of that
    HTTP header; never log it. ``truststore``: a file of type ``truststore_type``; empty: what Java
    trusts. ``keystore``: the ``ssl.*`` properties of a client certificate, checked; empty: there is
    none. ``places``: where the file sets them, by option.
    """

    urls: tuple[str, ...] = ()
    authorization: str = field(default="", repr=False)
    truststore: str = ""
    truststore_type: str = "JKS"
    truststore_password: str = field(default="", repr=False)
    places: tuple[tuple[str, ...], ...] = ()
    keystore: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def place(self, option: str) -> str:
        """Where the file sets ``option``, with the key: for errors."""
        return {one[0]: one[1] for one in self.places}.get(option, "sparkmirror.registry")
