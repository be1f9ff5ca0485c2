"""Packages that bring an engine, a destination, a check or more: found, listed, used, and refused by name."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent

import pytest
from click.testing import CliRunner, Result

from rivet_assets.cli.main import commands
from rivet_assets.config.json_schema import config_json_schema
from rivet_assets.config.load import load_text
from rivet_assets.config.spec import KINDS
from rivet_resources import registry
from rivet_resources.errors import ConfigError
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

    class Share(Nothing.__base__):
        type: Literal["share"] = "share"
        column: str
        fault: str = ""

        def refuses(self, schema):
            return "" if self.column in schema.names else f"there is no {self.column}"

        def measure(self, rows):
            if self.fault == "raises":
                raise ValueError("secret cell")
            if self.fault:
                return self.fault
            return rows.to_table(columns=[self.column]).num_rows / 100

    class Pager(Nothing.__base__):
        type: Literal["pager"] = "pager"
        on: tuple[str, ...] = ("failure",)
        fault: str = ""

        def send(self, body):
            if self.fault:
                raise OSError("secret address")
            with open("paged", "a") as file:
                file.write(body["event"] + " " + body["export"] + chr(10))
"""
OFFERS = {
    "rivet.destinations": "shelf = rivet_shelf:Shelf",
    "rivet.engines": "made = rivet_shelf:Made",
    "rivet.formats": "lines = rivet_shelf:Lines",
    "rivet.steps": "forget = rivet_shelf:Forget",
    "rivet.checks": "share = rivet_shelf:Share",
    "rivet.notifiers": "pager = rivet_shelf:Pager",
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
    for known in KINDS.values():
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
        ("check", "share", "rivet-shelf", "1.2", "rivet_shelf:Share", "ok"),
        ("notifier", "pager", "rivet-shelf", "1.2", "rivet_shelf:Pager", "ok"),
    } <= {tuple(row.values()) for row in json.loads(done.output)}
    schema = json.dumps(config_json_schema())
    assert all(f'"{word}"' in schema for word in ("made", "shelf", "lines", "forget", "share", "pager"))


JUDGED = """
source: {{type: datagen, pattern: orders, max_events: 50, events_per_second: 0}}
spark: inline
notifications: {{others: [{pager}]}}
exports:
  - name: orders
    table: orders
    format: parquet
    destination: {{type: local, path: lake}}
    contract:
      checks:
        half: {{measure: {measure}, {bounds}}}
"""
MEASURE, PAGER = "{type: share, column: order_id}", "{type: pager}"


@pytest.fixture
def judged(install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run an export with a package's check and a package's notifier."""
    install("rivet-shelf", SHELF, OFFERS)
    monkeypatch.chdir(tmp_path)

    def run(bounds: str, *, measure: str = MEASURE, pager: str = PAGER) -> Result:
        Path("rivet.yaml").write_text(JUDGED.format(bounds=bounds, measure=measure, pager=pager))
        return CliRunner().invoke(commands, ["run"], standalone_mode=False)

    return run


def test_check_of_a_package_judges_a_window_before_it_is_published(judged: Callable[..., Result]) -> None:
    """Its number is held against the bounds of the contract, and the package's notifier is told of the refusal."""
    passed = judged("min: 0.5, max: 0.5")
    parts = sorted(Path("lake/orders").glob("*.parquet"))
    refused = judged("max: 0.4")

    assert (0, 3) == (passed.return_value or 0, refused.return_value), refused.output
    assert "checks__half" in refused.output
    assert parts == sorted(Path("lake/orders").glob("*.parquet"))
    assert "failure orders\n" == Path("paged").read_text()


@pytest.mark.parametrize(
    ("measure", "why"),
    [
        ("{type: share, column: order_id, fault: raises}", "share failed on the window's rows (ValueError)"),
        ("{type: share, column: order_id, fault: text}", "share returned a str, not a number"),
        ("{type: share, column: none}", "share cannot measure these columns: there is no none"),
    ],
)
def test_check_that_fails_keeps_the_window_back(measure: str, why: str, judged: Callable[..., Result]) -> None:
    """Nothing is published, and no text of the package's is shown, which may hold a cell."""
    done = judged("max: 1", measure=measure)

    assert 0 != done.return_value
    assert why in done.output
    assert "secret" not in done.output
    assert not list(Path("lake/orders").glob("*.parquet"))


def test_notifier_that_fails_is_a_warning(judged: Callable[..., Result]) -> None:
    """The run's outcome is the run's; the notifier's own text may hold an address."""
    done = judged("max: 0.4", pager="{type: pager, fault: gone}")

    assert 3 == done.return_value
    assert "notifications.others (pager) was not told: OSError" in done.output
    assert "secret" not in done.output


def test_words_that_only_packages_bring_are_refused_without_them(tmp_path: Path) -> None:
    """Whoever lacks the package learns where to look."""
    text = JUDGED.format(bounds="max: 1", measure="{type: shares, column: id}", pager="{on: [failure]}")

    with pytest.raises(ConfigError) as refused:
        load_text(text, file=tmp_path / "rivet.yaml")

    assert "measure.type 'shares' is brought by no installed package; `rivet plugins` lists" in str(refused.value)
    assert "others[0].type is missing; `rivet plugins` lists" in str(refused.value)


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
