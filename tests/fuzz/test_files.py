"""Texts of a stranger as rivet.yaml, manifest and checkpoint: each ends in one clear fault with its place, and soon."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rivet_assets.config.load import load_text
from rivet_assets.config.yaml_document import YamlFault, read_yaml
from rivet_assets.plan.artefact import read as read_plan
from rivet_assets.prove.reconcile_report import read_report
from rivet_resources.commit.manifest import parse, read_schema
from rivet_resources.errors import ConfigError, ManifestUnreadable, RivetError
from rivet_resources.state.checkpoints.stores import file_checkpoints

FEW = settings(max_examples=300, derandomize=True, deadline=None, database=None)
SOON_SECONDS = 15.0  # on a busy machine; each takes less than two on a quiet one
SOURCE = "source: {type: sqlite, path: x.db}\n"
WORDS = st.sampled_from(
    ["a: ", "- ", "&a ", "*a", "<<: ", "[", "]", "{", "}", "\n", "  ", "!!int ", "!!timestamp ", "!!bool ", "!!binary ",
     "!!set ", "!!omap ", "? ", "x", "9", "${", "${A:-", "exports:", "source:", "'", '"', "|", ">", "#", ",", "\t",
     "0x", "1e9"]
)  # fmt: skip


@FEW
@given(text=st.lists(WORDS, max_size=25).map("".join))
def test_yaml_of_any_words_is_read_or_refused(text: str) -> None:
    """No error of Python's own comes out, and every fault has its line."""
    with suppress(YamlFault):
        read_yaml(text)
    with pytest.raises(ConfigError, match=r"rivet\.yaml"):
        load_text(text, file=Path("rivet.yaml"))


LEVELS = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else 'x'}]" for i in range(12))
MERGES = "m0: &m0 {k: v}\n" + "\n".join(f"m{i}: &m{i} {{<<: [{', '.join([f'*m{i - 1}'] * 9)}]}}" for i in range(1, 12))
HOSTILE = {
    "aliases": (LEVELS, r"holds more than 250,000 values"),
    "merge keys": (MERGES, r"holds more than 250,000 values"),
    "long texts by alias": (f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 5000)}]", r"more than 250,000 values"),
    "5000 digits": (f"max_events: {'9' * 5000}", r"a number has 5,000 digits"),
    "int of a word": ("a: 1\nb: !!int orders", r"2: .*`orders` is not of type int"),
    "timestamp of a word": ("a: !!timestamp x", r"`x` is not of type timestamp"),
    "bool of a word": ("a: !!bool x", r"`x` is not of type bool"),
    "brackets": ("a: " + "[" * 20_000, r"nested more deeply than 100 levels"),
    "braces": ("{a: " * 20_000, r"nested more deeply than 100 levels"),
    "itself": ("a: &a [*a]", r"an anchor that refers to itself"),
    "30 MB comment": ("# " + "x" * (30 << 20), r"allowed are 2,097,152"),
    "references without end": ("a: " + "${" * 900_000, r"rivet\.yaml"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_yaml_ends_in_one_line_and_soon(name: str) -> None:
    """File, line, what is wrong and what to do, instead of an endless check or a traceback."""
    text, told = HOSTILE[name]
    began = time.monotonic()

    with pytest.raises(ConfigError, match=told) as refused:
        load_text(SOURCE + text if name == "references without end" else text, file=Path("rivet.yaml"))

    assert "rivet.yaml:" in str(refused.value) or "rivet.yaml" in str(refused.value)
    assert len(str(refused.value)) < 2000
    assert time.monotonic() - began < SOON_SECONDS


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["parts", "path", "window"]), inner),
    max_leaves=8,
)


@FEW
@given(content=st.one_of(st.binary(max_size=100), JSON.map(lambda value: json.dumps(value).encode())))
def test_manifest_of_any_bytes_is_read_or_refused(content: bytes) -> None:
    """A damaged manifest has one class of fault, which names it."""
    with pytest.raises(ManifestUnreadable, match=r"m\.json"):
        parse(content, where="m.json")


@FEW
@given(text=st.text(max_size=60))
def test_schema_of_any_text_is_read_or_refused(text: str) -> None:
    """Not base64, or not a schema."""
    with pytest.raises(ManifestUnreadable, match="schema_ipc"):
        read_schema(text, where="m.json")
    assert pa.schema([]) is not None


DEEP = b'{"a":' * 100_000


@pytest.mark.parametrize(
    "content", [DEEP, b"[" * 100_000, b"\xff\xfe", b'{"seal": ' + b"9" * 10_000 + b"}", b"null", b""]
)
def test_other_files_of_any_bytes_are_refused_by_name(tmp_path: Path, content: bytes) -> None:
    """Plans, reports and checkpoints that are nested without end, or no JSON."""
    file = tmp_path / "file.json"
    file.write_bytes(content)

    for read in (read_plan, read_report, lambda path: file_checkpoints(path).load("orders")):
        with pytest.raises(RivetError, match=r"file\.json"):
            read(file)
