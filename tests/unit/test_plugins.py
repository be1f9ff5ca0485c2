"""Packages that bring an engine, a destination, a format or a step: found, listed, used, and refused by name."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent

import pytest
from click.testing import CliRunner

from rivet_assets.cli.main import commands
from rivet_assets.config.json_schema import config_json_schema
from rivet_assets.config.load import load_text
from rivet_resources import registry
from rivet_resources.plugins import PluginBroken
from rivet_resources.registry import Registry

# What packages outside begin with: classes of Rivet under another word.
SHELF = """
    from typing import Literal
    from rivet_resources.destinations.local import Local
    from rivet_resources.engines.datagen.source import Datagen
    from rivet_resources.shape.transforms.columns import Drop
    from rivet_resources.write.formats.csv import Csv

    class Shelf(Local):
        type: Literal["shelf"] = "shelf"

    class Made(Datagen):
        type: Literal["made"] = "made"

    class Lines(Csv):
        type: Literal["lines"] = "lines"

    class Forget(Drop):
        type: Literal["forget"] = "forget"

    class Nothing(Local.__base__):
        type: Literal["nothing"] = "nothing"
"""
OFFERS = {
    "rivet.destinations": "shelf = rivet_shelf:Shelf",
    "rivet.engines": "made = rivet_shelf:Made",
    "rivet.formats": "lines = rivet_shelf:Lines",
    "rivet.steps": "forget = rivet_shelf:Forget",
}
CONFIG = """
source: {type: made, pattern: orders, max_events: 50, events_per_second: 0}
spark: inline
exports:
  - name: orders
    table: orders
    format: lines
    transforms: [{type: forget, columns: [total_amount]}]
    destination: {type: shelf, path: lake}
"""
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Lay a package with its metadata into a folder of its own on the path, as pip does."""
    for known in (registry.ENGINES, registry.DESTINATIONS, registry.FORMATS, registry.STEPS):
        monkeypatch.setattr(known, "_plugins", None)
        monkeypatch.setattr(known, "_loaded", dict(known._loaded))

    def lay(package: str, code: str, offers: Mapping[str, str], *, version: str = "1.2") -> None:
        site = tmp_path / f"site-{package}"
        module = package.replace("-", "_")
        info = site / f"{module}-{version}.dist-info"
        info.mkdir(parents=True)
        (site / f"{module}.py").write_text(dedent(code))
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        lines = (f"[{group}]\n{points}\n" for group, points in offers.items())
        (info / "entry_points.txt").write_text("\n".join(lines))
        monkeypatch.delitem(sys.modules, module, raising=False)
        monkeypatch.syspath_prepend(str(site))

    return lay


def test_export_made_of_plugins_alone_runs(install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engine, step, format and destination of a package make an export, by the command line."""
    install("rivet-shelf", SHELF, OFFERS)
    monkeypatch.chdir(tmp_path)
    Path("rivet.yaml").write_text(CONFIG)

    told = [CliRunner().invoke(commands, [word], standalone_mode=False) for word in ("run", "validate")]

    assert [(0, None)] * 2 == [(each.return_value or 0, each.exception) for each in told], told[0].output
    (part,) = Path("lake/orders").glob("*.csv")
    header, *rows = part.read_text().splitlines()
    assert (50, False) == (len(rows), "total_amount" in header.split(","))


def test_plugins_are_listed_with_their_packages(install: Install) -> None:
    """Word, package, version and class; their keys stand in the schema that editors read."""
    install("rivet-shelf", SHELF, OFFERS)

    done = CliRunner().invoke(commands, ["plugins", "--json"], standalone_mode=False)

    assert 0 == done.return_value
    assert {
        ("engine", "made", "rivet-shelf", "1.2", "rivet_shelf:Made", "ok"),
        ("destination", "shelf", "rivet-shelf", "1.2", "rivet_shelf:Shelf", "ok"),
        ("format", "lines", "rivet-shelf", "1.2", "rivet_shelf:Lines", "ok"),
        ("transform", "forget", "rivet-shelf", "1.2", "rivet_shelf:Forget", "ok"),
    } <= {tuple(row.values()) for row in json.loads(done.output)}
    schema = json.dumps(config_json_schema())
    assert all(f'"{word}"' in schema for word in ("made", "shelf", "lines", "forget"))


FAULTS = {
    "raises": ("rivet-bad", "raise RuntimeError('no licence')", "x = rivet_bad:X", "RuntimeError: no licence"),
    "no module": ("rivet-bad", "", "x = rivet_gone:X", "ModuleNotFoundError"),
    "no class": ("rivet-bad", "", "x = rivet_bad:X", "AttributeError"),
    "no block": ("rivet-bad", "class X: pass", "x = rivet_bad:X", "must be a Settings"),
    "own word": ("rivet-bad", "class X: pass", "s3 = rivet_bad:X", "has a word of Rivet's own"),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_plugin_that_cannot_be_used_is_named_with_its_package(kind: str, install: Install, tmp_path: Path) -> None:
    """One line in the list, exit code 1; and one line where its word is used. Rivet's own word stays Rivet's."""
    package, code, point, says = FAULTS[kind]
    install(package, code, {"rivet.destinations": point})

    done = CliRunner().invoke(commands, ["plugins", "--json"], standalone_mode=False)

    (row,) = (row for row in json.loads(done.output) if row["package"] == package)
    assert (1, True) == (done.return_value, says in row["status"])
    assert "rivet-bad 1.2" in row["status"]
    assert "\n" not in row["status"]
    json.dumps(config_json_schema())  # of all others
    if kind == "own word":
        assert "rivet_resources.destinations.s3" == registry.DESTINATIONS["s3"].__module__
    else:
        block = CONFIG.replace("made", "datagen").replace("lines", "csv").replace("shelf", "x")
        with pytest.raises(PluginBroken, match=r"rivet-bad 1\.2"):
            load_text(block.replace("{type: forget, columns: [total_amount]}", ""), file=tmp_path / "rivet.yaml")


def test_block_without_what_its_kind_needs_is_refused(install: Install) -> None:
    """The methods that it lacks are named, before a row is read."""
    install("rivet-shelf", SHELF, {"rivet.destinations": "nothing = rivet_shelf:Nothing"})

    with pytest.raises(PluginBroken, match=r"is no destination: it lacks credentials, .*root"):
        registry.DESTINATIONS["nothing"]


def test_word_of_two_packages_is_refused(install: Install) -> None:
    """Neither is taken by chance."""
    install("rivet-shelf", SHELF, {"rivet.destinations": "shelf = rivet_shelf:Shelf"})
    install("rivet-rack", SHELF, {"rivet.destinations": "shelf = rivet_rack:Shelf"})

    with pytest.raises(PluginBroken, match=r"also offered by rivet-(rack|shelf); keep one"):
        registry.DESTINATIONS["shelf"]


def test_plugins_are_not_looked_for_while_words_are_known(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has none, or uses none, pays nothing."""
    install("rivet-shelf", SHELF, OFFERS)
    known = Registry({"local": "rivet_resources.destinations.local:Local"}, kind="destination")

    assert ("Local", True, ["local"]) == (known["local"].__name__, "local" in known, list(known))
    assert known._plugins is None
    assert "shelf" in known
    assert "rivet_shelf" not in sys.modules


def test_known_words_import_no_metadata_of_packages(tmp_path: Path) -> None:
    """In a new process: reading a configuration without plugins does not look through the installed packages."""
    (tmp_path / "rivet.yaml").write_text(
        "source: {type: sqlite, path: a.db}\n"
        "exports: [{name: a, table: t, format: csv, destination: {type: local, path: out}}]\n"
    )
    code = (
        "import sys; from rivet_assets.config.load import load_config; load_config(sys.argv[1]);"
        "from rivet_resources import registry as r;"
        "print([k._plugins for k in (r.ENGINES, r.DESTINATIONS, r.FORMATS, r.STEPS)])"
    )

    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "rivet.yaml")], capture_output=True, text=True)

    assert "[None, None, None, None]" == done.stdout.strip(), done.stderr
