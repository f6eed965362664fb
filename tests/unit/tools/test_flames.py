"""Flame graphs of sampled stacks."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks.profiles.flames import draw, read_stacks, self_times

_SVG = "{http://www.w3.org/2000/svg}"


def test_stacks_of_several_files_add_up(tmp_path: Path) -> None:
    """A frame may have spaces in it; the number is behind the last one."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("main;read (sparkmirror/a.py:1) 3\nmain 1\n\n")
    two.write_text("main;read (sparkmirror/a.py:1) 2\nmain;write 4\n")
    found = read_stacks([one, two])
    assert found == {("main", "read (sparkmirror/a.py:1)"): 5, ("main",): 1, ("main", "write"): 4}
    assert self_times(found) == [
        ("read (sparkmirror/a.py:1)", 0.5), ("write", 0.4), ("main", 0.1),
    ]  # fmt: skip


def test_widths_are_samples_and_a_frame_lies_on_its_caller(tmp_path: Path) -> None:
    """Text and hint of a frame are those of an XML document, whatever characters it has."""
    stacks = {("main", "a<b>&\"c'"): 60, ("main", "b", "leaf"): 30, ("main",): 10, ("other",): 1}
    draw(stacks, "catch-up, <JVM>", tmp_path / "graph.svg")
    root = ElementTree.parse(tmp_path / "graph.svg").getroot()
    boxes = {}
    for group in root.iter(f"{_SVG}g"):
        title, box = group.find(f"{_SVG}title"), group.find(f"{_SVG}rect")
        assert title is not None
        assert box is not None
        assert title.text is not None
        boxes[title.text] = {name: float(box.attrib[name]) for name in ("x", "y", "width")}
    main, left, middle = boxes["main (99.0%)"], boxes["a<b>&\"c' (59.4%)"], boxes["b (29.7%)"]
    assert left["width"] / main["width"] == pytest.approx(0.6, abs=0.01)
    assert middle["width"] / main["width"] == pytest.approx(0.3, abs=0.01)
    assert left["y"] == middle["y"] < main["y"]
    assert boxes["leaf (29.7%)"]["x"] == middle["x"] == pytest.approx(left["x"] + 820, abs=1)
    assert main["x"] + main["width"] <= boxes["other (1.0%)"]["x"] + 1


def test_no_samples_make_an_empty_graph(tmp_path: Path) -> None:
    """A process that did nothing."""
    draw({}, "idle", tmp_path / "graph.svg")
    assert "idle, 0 samples" in (tmp_path / "graph.svg").read_text()
