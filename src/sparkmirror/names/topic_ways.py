"""Which remote names the topics of a flow may have, found from its lists and its map alone.

A flow names a topic in one of several ways: by a rule of its map, or by its policy. `ways_of`
returns each way as sets of names that can be searched for a common name (`names.regex_overlap`).
So loops, and topics that would get the same name, are found before anything runs, with an example.

The names that a rule gives are approximated: each group may have any content. That can be more
names than the rule really gives. So an example counts only if `FlowTopics` gives the same names; if
no example holds, the result is `Undecided`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from sparkmirror.errors import ConfigError
from sparkmirror.model import MirrorMode
from sparkmirror.names.java_regex import compile_regex
from sparkmirror.names.regex_overlap import Names, Undecided, common_name
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.names.smts import BY_NAME, ROUTER, SmtChain
from sparkmirror.names.topics_map import Part, parse_name
from sparkmirror.settings import FlowNaming, TopicRule
from sparkmirror.transform_settings import SmtSettings

__all__ = [
    "Way",
    "common_target",
    "copied_again",
    "loop_example",
    "one_target_twice",
    "policy_way",
    "renamed_origin",
    "rule_catches",
    "rule_gives",
    "ways_of",
]

# Limits of one search; beyond them the result is Undecided.
_PATHS_MAX = 200
_TRIES_MAX = 6
_ANY = ".*"
_GROUP = re.compile(r"\((?:\?<[A-Za-z][A-Za-z0-9]*>|(?!\?))")
_OPTIONAL = re.compile(r"[?*]|\{0")
_IGNORES_CASE = re.compile(r"\(\?[a-z]*i")
# The end of a regex that takes all that is left of a name; regexes without any choice; parts of
# others that need not be read further.
_TO_THE_END = re.compile(r"(?<!\\)(?:\.[*+]\)*\$?|\$)\Z")
_NO_CHOICE = re.compile(r"(?:[^\\|*+?{]|\\[^Q])*")
_UNREAD = re.compile(r"\\Q|\(\?<?[=!]")
_BRANCHES = re.compile(r"\\.|\[(?:\\.|[^\]])*\]|[()|]")
# A regex without its groups looks like this if each name comes from one topic only.
_PLAIN = re.compile(r"(?:[\w-]|\\[._-]|\[[.]\]|\\Q[\w.-]*\\E|\(\)|\^|\$)*")


@dataclass(frozen=True, slots=True)
class Way:
    """One way in which a flow names topics.

    ``domain``: the source topics are in all of these sets. ``image``: their remote names.
    ``origin``: returns the source topics of a remote name; None if unknown. ``prefixes``: remote
    names are source names with the prefix of ``image``. ``one_to_one``: no two topics get the same
    name.
    """

    domain: tuple[Names, ...]
    image: Names
    origin: Callable[[str], Names | None]
    prefixes: bool = False
    one_to_one: bool = False


def ways_of(naming: FlowNaming) -> list[Way]:
    """All ways of one flow: its rules in order, then its policy, then RegexRouter."""
    policy = policy_way(naming)
    (names,) = policy.domain
    # The policy names heartbeats.
    heartbeats = () if naming.mode is MirrorMode.MM1 else (_heartbeats(naming),)
    ways: list[Way] = []
    taken: tuple[str, ...] = ()
    for rule in naming.topics.map:
        domain = Names(names.include, (*names.exclude, *heartbeats, *taken)), Names((rule.regex,))
        shape = _Shape.of(rule)
        if shape is None:
            ways.append(Way(domain, Names((_ANY,)), lambda _: None))
        else:
            ways.append(
                Way(domain, Names((shape.image(),)), shape.origin, one_to_one=shape.one_to_one)
            )
        taken = (*taken, rule.regex)
    left = Names(names.include, (*names.exclude, *taken))
    image = Names(left.include, left.exclude, policy.image.prefix)
    ways.append(Way((left,), image, policy.origin, prefixes=True, one_to_one=True))
    if any(one.kind == ROUTER for one in naming.topics.smts):
        # What RegexRouter gives is not computed, so an example must show it.
        renamed = Names(names.include, (*names.exclude, *heartbeats))
        ways.append(Way((renamed,), Names((_ANY,)), lambda _: None))
    return ways


def policy_way(naming: FlowNaming) -> Way:
    """The way of the policy for all topics of a flow, as if there were no map."""
    topics, prefix = naming.topics, ""
    never: tuple[str, ...] = ()
    if naming.mode is MirrorMode.MM2:
        never = _internal(naming)
        if naming.policy.kind == "identity":
            never = (*never, ".*heartbeats")  # every policy renames these
        else:
            prefix = naming.source + naming.policy.separator
            mark = naming.policy.separator
            # Topics that come from the target, over any number of hops.
            never = (*never, f"(?:.*{quoted(mark)})?{quoted(naming.target + mark)}.*")
    names = Names(topics.include, (*never, *topics.exclude))
    return Way(
        (names,),
        Names(names.include, names.exclude, prefix),
        lambda name: Names((quoted(name.removeprefix(prefix)),)),
        prefixes=True,
        one_to_one=True,
    )


def _internal(naming: FlowNaming) -> tuple[str, ...]:
    """Regexes of the topics that are never mirrored."""
    mark = quoted(naming.policy.separator if naming.policy.internal_separator_enabled else ".")
    return ("__.*", "[.].*", f"mm2.*{mark}internal", f".*{mark}checkpoints{mark}internal")


def _heartbeats(naming: FlowNaming) -> str:
    return f"(?:.*{quoted(naming.policy.separator)})?heartbeats"


def quoted(text: str) -> str:
    """A Java regex that matches only ``text``."""
    return rf"\Q{text}\E" if text else ""


# --- rules --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shape:
    """The parts of a rule.

    ``spans``: start and end of each group's content in ``regex``. ``unsure``: groups that may match
    nothing because they are optional or one of several alternatives.
    """

    regex: str
    parts: tuple[Part, ...]
    spans: tuple[tuple[int, int], ...]
    unsure: frozenset[int] = frozenset()

    @classmethod
    def of(cls, rule: TopicRule) -> _Shape | None:
        """The shape of ``rule``; None if its name uses a group and another one within it."""
        pattern = compile_regex(rule.regex)
        parts = parse_name(rule.name, pattern.groups, pattern.groupindex)
        spans, unsure = _groups(rule.regex)
        shape = cls(rule.regex, parts, ((0, len(rule.regex)), *spans), unsure)
        groups = {part for part in parts if isinstance(part, int)}
        apart = len(shape.spans) == pattern.groups + 1 and all(
            shape.spans[one][1] <= shape.spans[other][0]
            or shape.spans[other][1] <= shape.spans[one][0]
            for one, other in itertools.combinations(groups, 2)
        )
        return shape if apart else None

    @property
    def one_to_one(self) -> bool:
        """Whether the name contains everything in which matching topics differ."""
        rest = self.regex
        for start, end in sorted(self._used(), reverse=True):
            rest = rest[:start] + rest[end:]
        return bool(_PLAIN.fullmatch(rest)) and not _IGNORES_CASE.search(self.regex)

    def _used(self) -> set[tuple[int, int]]:
        return {self.spans[part] for part in self.parts if isinstance(part, int)}

    def image(self, group: str = "(?:{content})", again: str = "") -> str:
        """A regex for the names that the rule gives.

        ``group``: template for a group's content. ``again``: for one that the name has already; if
        empty, ``group``, so each may have another content.
        """
        flags = "(?i)" if _IGNORES_CASE.search(self.regex) else ""
        told, seen = [], set[int]()
        for part in self.parts:
            if isinstance(part, str):
                told.append(quoted(part))
            else:
                start, end = self.spans[part]
                content = self.regex[start:end]
                form = again if again and part in seen else group
                seen.add(part)
                told.append(form.replace("{number}", str(part)).replace("{content}", content))
                told.append("?" if part in self.unsure else "")
        return flags + "".join(told)

    def origin(self, name: str) -> Names | None:
        """The source topics that become ``name``; None if unknown."""
        try:
            named = compile_regex(
                self.image("(?<sparkmirror{number}>{content})", r"\k<sparkmirror{number}>")
            )
        except ConfigError:
            return None
        match = named.fullmatch(name)
        if match is None:  # the image has names in which a group is there twice with other content
            return Names(())
        regex = self.regex
        # Replace from the end, so that the other spans stay valid.
        groups = {part for part in self.parts if isinstance(part, int)}
        for part in sorted(groups, key=lambda one: self.spans[one], reverse=True):
            start, end = self.spans[part]
            regex = regex[:start] + quoted(match[f"sparkmirror{part}"] or "") + regex[end:]
        return Names((regex,))


@dataclass(slots=True)
class _Open:
    """An open parenthesis, or the whole regex.

    ``within``: the groups in it. ``either``: it contains a ``|``.
    """

    number: int | None = None
    within: set[int] = field(default_factory=set)
    either: bool = False


def _groups(regex: str) -> tuple[list[tuple[int, int]], frozenset[int]]:
    """Start and end of each numbered group's content, and the groups that may match nothing."""
    spans: list[tuple[int, int]] = []
    unsure: set[int] = set()
    stack = [_Open()]
    at = classes = 0
    while at < len(regex):
        char, step = regex[at], 1
        if regex.startswith(r"\Q", at):
            end = regex.find(r"\E", at)
            step = len(regex) if end < 0 else end + 2 - at
        elif char == "\\":
            step = 2
        elif char == "[":
            classes += 1
        elif char == "]":
            classes = max(0, classes - 1)
        elif classes:
            pass
        elif char == "|":
            stack[-1].either = True
        elif char == "(":
            match = _GROUP.match(regex, at)
            stack.append(_Open(None if match is None else len(spans) + 1))
            if match is not None:
                spans.append((match.end(), match.end()))
        elif char == ")" and len(stack) > 1:
            one = stack.pop()
            unsure |= one.within if one.either else set()
            if one.number is not None:
                spans[one.number - 1] = spans[one.number - 1][0], at
                one.within.add(one.number)
            if _OPTIONAL.match(regex, at + 1):
                unsure |= one.within
            stack[-1].within |= one.within
        at += step
    unsure |= stack[0].within if stack[0].either else set()
    return spans, frozenset(unsure)


# --- questions ----------------------------------------------------------------------------------


def rule_catches(naming: FlowNaming, index: int) -> bool:
    """Whether rule ``index`` of a flow's map matches any topic that the flow may mirror.

    Raises `Undecided`.
    """
    return common_name(ways_of(naming)[index].domain) is not None


def rule_gives(naming: FlowNaming, index: int) -> bool:
    """Whether rule ``index`` may give a name that is not internal. Raises `Undecided`."""
    other = Names((_ANY,), (*_internal(naming), r"mm2.*\.internal", _heartbeats(naming)))
    return common_name((ways_of(naming)[index].image, other)) is not None


def loop_example(ring: Sequence[FlowNaming]) -> list[str] | None:
    """The names of an example topic along all flows of ``ring``, beginning with its source name.

    None if no topic passes through all of them. Raises `Undecided`.
    """
    topics = [FlowTopics(naming) for naming in ring]

    def named(topic: str) -> list[str] | None:
        names = [topic]
        for wanted in topics:
            if not wanted.accepts(names[-1]) or wanted.fault(names[-1]):
                return None
            names.append(wanted.remote(names[-1]))
        return names

    undecided = ""
    paths = itertools.product(*map(ways_of, ring))
    for path in itertools.islice(paths, _PATHS_MAX):
        try:
            arriving = _arriving(path)
            if arriving is None:
                continue
            for topic in _beginnings(path, arriving):
                names = named(topic)
                if names is not None:
                    return names
            undecided = "no example holds"
        except Undecided as error:
            undecided = str(error)
    if undecided or next(paths, None) is not None:
        raise Undecided(undecided or "too many rules")
    return None


def _arriving(path: Sequence[Way]) -> str | None:
    """The name with which a topic may come to the last of ``path``. Raises `Undecided`.

    None: no topic passes through all of ``path``. That is certain, a name is not.
    """
    names: list[Names] = []
    found = None
    for way in path:
        names += way.domain
        found = common_name(names)
        if found is None:
            return None
        if way.prefixes:
            prefix = way.image.prefix
            names = [Names(one.include, one.exclude, prefix + one.prefix) for one in names]
        else:
            names = [way.image]
    return found


def _beginnings(path: Sequence[Way], arriving: str) -> Iterator[str]:
    """Some topics that may pass through all of ``path``. ``arriving``: see `_arriving`."""
    *before, last = path
    if all(way.prefixes for way in before):
        yield arriving.removeprefix("".join(way.image.prefix for way in reversed(before)))
    yield from _some(path[0].domain)
    yield from _back(before, last.domain)


def _back(path: Sequence[Way], sets: Sequence[Names]) -> Iterator[str]:
    """Some topics whose name at the end of ``path`` is in all ``sets``."""
    if not path:
        yield from _some(sets)
        return
    *before, last = path
    for name in _some([last.image, *sets]):
        origin = last.origin(name)
        if origin is not None:
            yield from _back(before, [*last.domain, origin])


def renamed_origin(naming: FlowNaming, name: str) -> str | None:
    """A topic to which RegexRouter gives the remote name ``name``, or leaves it.

    None if there is none. Raises `Undecided`.
    """
    (names,), topics = policy_way(naming).domain, FlowTopics(naming)
    prefix = policy_way(naming).image.prefix
    image = Names(names.include, (*names.exclude, _heartbeats(naming)), prefix)
    for sets in _before([one for one in naming.topics.smts if one.kind == ROUTER], name):
        found = common_name([image, *sets])
        if found is None:
            continue
        topic = found.removeprefix(prefix)
        if topics.accepts(topic) and not topics.fault(topic) and topics.remote(topic) == name:
            return topic
        raise Undecided("no example holds")
    return None


def _before(routers: Sequence[SmtSettings], name: str) -> Iterator[list[Names]]:
    """Sets of names: those that are in all sets of one list may become ``name``.

    Raises `Undecided`.
    """
    *others, last = routers
    kept = [Names((quoted(name),))]
    made = _made_by(last, name)
    for sets in (kept, made) if SmtChain([last]).passage(name).name == name else (made,):
        if not others:
            yield sets
            continue
        known = list(_some(sets))
        if len(known) == _TRIES_MAX:
            raise Undecided("too many names")
        for each in known:
            yield from _before(others, each)


def _made_by(router: SmtSettings, name: str) -> list[Names]:
    """The names that ``router`` changes into ``name`` are in all of these. Raises `Undecided`."""
    regex = router.regex
    shape = _Shape.of(TopicRule(regex, router.replacement))
    # Java searches for what it replaces, and may find less than the whole name.
    origin = shape.origin(name) if shape and _matches_to_the_end(regex) else None
    if origin is None:
        raise Undecided("unknown origin")
    if router.predicate != BY_NAME:
        return [origin]
    pattern = (router.argument,)
    return [origin, Names((_ANY,), pattern) if router.negate else Names(pattern)]


def _matches_to_the_end(regex: str) -> bool:
    """Whether each match at a name's begin ends with the name, if the regex matches the name.

    False if that is not sure.
    """
    if _NO_CHOICE.fullmatch(regex):
        return True
    end = _TO_THE_END.search(regex)
    if end is None or _UNREAD.search(regex):
        return False
    # Of alternatives, one may be found that is not the last.
    branches = [False]
    for match in _BRANCHES.finditer(regex[: end.start()]):
        if match[0] == "(":
            branches.append(False)
        elif match[0] == ")" and len(branches) > 1:
            branches.pop()
        elif match[0] == "|":
            branches[-1] = True
    return not any(branches)


def copied_again(naming: FlowNaming) -> list[str] | None:
    """A topic, its remote topic, and the remote topic of that, if both clusters are the same one.

    None if no remote topic is mirrored again, or if the rules are too complex to decide.
    """
    try:
        return loop_example([naming, naming])
    except Undecided:
        return None


def common_target(one: FlowNaming, other: FlowNaming) -> tuple[str, str, str] | None:
    """A topic of each of two flows that get the same remote name, and that name.

    None if none is found. Raises `Undecided`.
    """
    return _met(one, other, itertools.product(_used(one), _used(other)))


def one_target_twice(naming: FlowNaming) -> tuple[str, str, str] | None:
    """Two topics of one flow that get the same remote name, and that name.

    None if none are found. Raises `Undecided`.
    """
    if any(one.kind == ROUTER for one in naming.topics.smts):
        return _routed_twice(naming)
    ways = _used(naming)
    own = [(way, way) for way in ways if not way.one_to_one]
    return _met(naming, naming, [*itertools.combinations(ways, 2), *own])


def _routed_twice(naming: FlowNaming) -> tuple[str, str, str] | None:
    """The same with RegexRouter, among a few topics that the flow may mirror."""
    topics, seen = FlowTopics(naming), dict[str, str]()
    for topic in _some(policy_way(naming).domain):
        if not topics.accepts(topic) or topics.fault(topic):
            continue
        name = topics.remote(topic)
        if name in seen:
            return seen[name], topic, name
        seen[name] = topic
    return None


def _used(naming: FlowNaming) -> list[Way]:
    """The ways that at least one topic may take. Raises `Undecided`."""
    return [way for way in ways_of(naming) if common_name(way.domain) is not None]


def _met(
    one: FlowNaming, other: FlowNaming, pairs: Iterable[tuple[Way, Way]]
) -> tuple[str, str, str] | None:
    ours, theirs = FlowTopics(one), FlowTopics(other)

    def good(wanted: FlowTopics, topic: str, name: str) -> bool:
        return wanted.accepts(topic) and not wanted.fault(topic) and wanted.remote(topic) == name

    for mine, its in itertools.islice(pairs, _PATHS_MAX):
        shared = [mine.image] if mine is its else [mine.image, its.image]
        if common_name(shared) is None:
            continue
        examples = (
            *map(ours.remote, _some(mine.domain)),
            *map(theirs.remote, _some(its.domain)),
            *_some(shared),
        )
        for name in dict.fromkeys(examples):
            where = [Names((quoted(name),))]
            back = _back([mine], where)
            first = next(back, "")
            second = next(back if mine is its else _back([its], where), "")
            if first and second and good(ours, first, name) and good(theirs, second, name):
                return first, second, name
    return None


def _some(sets: Sequence[Names]) -> Iterator[str]:
    """A few names that are in all ``sets``."""
    seen: tuple[str, ...] = ()
    while len(seen) < _TRIES_MAX:
        name = common_name([*sets, Names((_ANY,), seen)] if seen else sets)
        if name is None:
            return
        yield name
        seen = (*seen, quoted(name))
