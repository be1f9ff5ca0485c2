"""What `rivet validate` sees of what is published, on a folder, an S3 server and a GCS emulator."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rivet_assets.prove.validate import facts_of
from rivet_resources.commit.manifest import manifest_path, success_marker
from rivet_resources.contracts.destination import TellsContent
from rivet_resources.contracts.extract import CursorMove, Window
from rivet_resources.destinations.local import Local
from rivet_resources.errors import DestinationError, UnsupportedColumn
from rivet_resources.prove.flaws import Depth
from rivet_resources.prove.validate import TOLD_OBJECTS, validate
from rivet_resources.shape.change_envelope import as_inserts
from rivet_resources.state.store import default_url, open_state
from rivet_resources.write.formats.avro import Avro
from rivet_resources.write.formats.csv import Csv
from rivet_resources.write.formats.ndjson import Ndjson
from rivet_resources.write.formats.parquet import Parquet
from tests.engines.test_destinations import destination, fenced_gcs, fenced_s3, taking_azure  # noqa: F401
from tests.published import ALL, JANUARY, ORDERS, Published, flipped

pytestmark = pytest.mark.wide

CHANGES = pa.schema([pa.field("id", pa.int64()), pa.field("note", pa.string())])


@pytest.fixture
def lake(destination: Any, tmp_path: Path) -> Iterator[Published]:  # noqa: F811
    """An empty place of each kind, and a state store."""
    state = open_state(default_url(tmp_path))
    yield Published(destination, state)
    state.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Published]:
    """An empty folder, and a state store."""
    state = open_state(default_url(tmp_path))
    yield Published(Local(path=str(tmp_path / "lake")), state)
    state.close()


# --- nothing is wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize("depth", ["light", "sample", "full"])
def test_what_was_committed_validates(lake: Published, depth: Depth) -> None:
    """A window that nobody touched has no flaw at any depth; at full depth every column is compared."""
    lake.commit()
    lake.commit(ORDERS.slice(0, 100))  # the newer manifest replaces the older one and its parts

    found = lake.validate(depth)

    assert ("match", 0, ()) == (found.verdict, found.exit_code, found.all_flaws)
    (window,) = found.windows
    assert (100, 4) == (window.rows, window.parts)
    assert (tuple(ORDERS.column_names) if depth == "full" else ()) == window.compared


@pytest.mark.parametrize("window", [ALL, JANUARY], ids=["all", "time"])
def test_window_without_rows_validates(disk: Published, window: Window) -> None:
    """A manifest without parts has nothing to compare, and nothing wrong."""
    disk.commit(ORDERS.slice(0, 0), window=window)

    assert [] == disk.codes()


COMPARED = {
    "parquet": (Parquet(), []),
    "ndjson": (Ndjson(), []),
    "csv": (Csv(), []),
    "avro": (Avro(), []),
}


@pytest.mark.parametrize(("form", "not_compared"), COMPARED.values(), ids=COMPARED)
def test_cells_of_every_format_are_compared(disk: Published, form: Any, not_compared: list[str]) -> None:
    """Texts, empty ones and NULLs, numbers, instants: a format that spells them one way gives them back."""
    disk.commit(format=form)

    found = disk.validate()

    assert () == found.all_flaws
    assert not_compared == list(found.windows[0].not_compared)


TYPED: dict[str, pa.Array] = {
    "i8": pa.array([-1, None, 5], pa.int8()),
    "u64": pa.array([2**64 - 1, 0, None], pa.uint64()),
    "real": pa.array([1.5, -0.0, None], pa.float32()),
    "nan": pa.array([float("nan"), 1.0, None]),
    "infinite": pa.array([float("inf"), float("-inf"), None]),
    "wide": pa.array([Decimal(1) / 4, None, Decimal(-7)], pa.decimal256(60, 2)),
    "day": pa.array([date(1, 1, 1), None, date(9999, 12, 31)], pa.date32()),
    "naive": pa.array([datetime(1, 1, 1), None, datetime(9999, 12, 31, 23, 59, 59, 999999)], pa.timestamp("us")),
    "nanos": pa.array([1, None, -1], pa.timestamp("ns")),
    "clock": pa.array([1, None, 86_399_999_999], pa.time64("us")),
    "bytes": pa.array([b"\0\xff", b"", None]),
    "fixed": pa.array([b"0123456789abcdef", None, b"fedcba9876543210"], pa.binary(16)),
    "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0123456789abcdef", None, None], pa.binary(16))),
    "json": pa.ExtensionArray.from_storage(pa.json_(pa.string()), pa.array(['{"a": [1, 2.50]}', None, "null"])),
    "quoted": pa.array(['a "b", c', "line\nfeed\r\n", None]),
    "texts": pa.array([["a", None], [], None]),
    "numbers": pa.array([[1, None], [], None], pa.list_(pa.int32())),
    "clocks": pa.array([[1, None], [], None], pa.list_(pa.time64("us"))),
    "row": pa.array([{"n": 1, "t": "x"}, None, {"n": None, "t": ""}]),
}
OWN_WAY = {  # columns that a format spells so that their cells do not come back bit by bit
    "parquet": [],
    "avro": [],
    "ndjson": ["nan", "wide", "nanos", "clock", "fixed", "uuid", "json", "clocks", "row"],
    "csv": ["nan", "clock", "bytes", "uuid", "json"],
}


def is_held(form: Any, kind: pa.DataType) -> bool:
    """Return whether a format holds a type."""
    try:
        form.check_schema(pa.schema([("x", kind)]), export="orders")
    except UnsupportedColumn:
        return False
    return True


@pytest.mark.parametrize("form", [Parquet(), Avro(), Ndjson(), Csv()], ids=["parquet", "avro", "ndjson", "csv"])
def test_every_type_is_compared_or_told_as_not_compared(disk: Published, form: Any) -> None:
    """Whatever a column holds, an untouched part never looks wrong; what was not compared is named."""
    columns = {name: cells for name, cells in TYPED.items() if is_held(form, cells.type)}

    disk.commit(pa.table(columns), format=form, pieces=1)

    found = disk.validate()
    assert () == found.all_flaws
    assert OWN_WAY[form.type] == list(found.windows[0].not_compared)
    assert len(columns) > 10
    assert {*columns} - {*OWN_WAY[form.type]} == {*found.windows[0].compared}


# --- parts ---------------------------------------------------------------------------------------


def test_flipped_bit_in_a_part_is_seen(lake: Published) -> None:
    """One bit of one part: full depth reads bytes; a store that keeps checksums of its own tells it before."""
    lake.commit()
    lake.change(lake.parts[2], flipped)

    found = lake.validate()

    by_store = ["PART_CHECKSUM_MISMATCH"] if isinstance(lake.root, TellsContent) else []
    assert ([], by_store) == (lake.codes("light"), lake.codes("sample"))
    assert ["PART_CHECKSUM_MISMATCH"] == [flaw.short for flaw in found.all_flaws]
    assert (lake.parts[2], "all") == (found.all_flaws[0].path, found.all_flaws[0].window)
    assert ("mismatch", 3) == (found.verdict, found.exit_code)
    assert ((), ()) == (found.windows[0].compared, found.windows[0].not_compared)


def test_truncated_part_is_seen_by_its_size(lake: Published) -> None:
    """A part that lost its end has another size, which sample depth sees."""
    lake.commit()
    lake.change(lake.parts[0], lambda content: content[:-10])

    assert ([], ["PART_SIZE_MISMATCH"], ["PART_SIZE_MISMATCH"]) == tuple(map(lake.codes, ["light", "sample", "full"]))


def test_missing_part_is_seen(lake: Published) -> None:
    """A listed part that is not there."""
    lake.commit()
    lake.root.delete([lake.parts[1]])

    assert ([], ["PART_MISSING"], ["PART_MISSING"]) == tuple(map(lake.codes, ["light", "sample", "full"]))


def test_swapped_parts_are_seen(lake: Published) -> None:
    """Two parts that took each other's place have the wrong bytes, whatever their sizes."""
    lake.commit()
    one, other = lake.parts[0], lake.parts[3]
    kept = lake.bytes_of(one)
    lake.root.put(one, lake.bytes_of(other))
    lake.root.put(other, kept)

    found = lake.codes()

    assert 2 == len(found)
    assert {*found} <= {"PART_CHECKSUM_MISMATCH", "PART_SIZE_MISMATCH"}


def test_cells_that_were_exchanged_with_their_evidence_are_seen(disk: Published, tmp_path: Path) -> None:
    """A part with other cells, whose size and hashes somebody wrote into the manifest, differs by its checksums."""
    disk.commit()
    other = Published(Local(path=str(tmp_path / "other")), disk.state)
    other.commit(ORDERS.set_column(2, "amount", pa.array([Decimal(7)] * 400, pa.decimal128(12, 2))))

    def exchange(document: dict[str, Any]) -> None:
        for mine, theirs in zip(
            document["parts"], json.loads(other.bytes_of(manifest_path(ALL)))["parts"], strict=True
        ):
            disk.root.put(mine["path"], other.bytes_of(theirs["path"]))
            mine |= {key: theirs[key] for key in ("size_bytes", "content_fingerprint", "content_md5")}

    disk.edit_everywhere(exchange)

    found = disk.validate()
    assert ["VALUE_CHECKSUM"] == [flaw.short for flaw in found.all_flaws]
    assert "'amount' of 400 rows" in found.all_flaws[0].text
    assert [] == disk.codes("sample")


def test_rows_that_do_not_match_the_manifest_are_seen(disk: Published) -> None:
    """Counts that were changed so that their sum still agrees: the part itself is counted."""
    disk.commit()

    def move_a_row(document: dict[str, Any]) -> None:
        document["parts"][0]["rows"] += 1
        document["parts"][1]["rows"] -= 1

    disk.edit_everywhere(move_a_row)

    assert ["PART_ROW_COUNT", "PART_ROW_COUNT"] == disk.codes()


def test_part_without_evidence_proves_nothing(disk: Published) -> None:
    """A manifest that gives no MD5 leaves nothing to compare the bytes with."""
    disk.commit()
    disk.edit_everywhere(lambda document: document["parts"][0].update(content_md5=""))

    assert ([], ["CONTENT_UNMET"]) == (disk.codes("sample"), disk.codes("full"))


# --- manifests -----------------------------------------------------------------------------------

EDITS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "total": (lambda document: document.update(row_count=401), "MANIFEST_INCONSISTENT"),
    "rows of a part": (lambda document: document["parts"][0].update(rows=1), "MANIFEST_INCONSISTENT"),
    "part listed twice": (
        lambda document: document["parts"][0].update(path=document["parts"][1]["path"]),
        "MANIFEST_INCONSISTENT",
    ),
    "schema fingerprint": (lambda document: document.update(schema_fingerprint="xxh3:00"), "MANIFEST_INCONSISTENT"),
    "schema": (lambda document: document.update(schema_ipc="AAAA"), "MANIFEST_INCONSISTENT"),
    "checksum of no number": (
        lambda document: document["column_checksums"][0].update(checksum="-1"),
        "MANIFEST_INCONSISTENT",
    ),
    "checksum of no column": (
        lambda document: document["column_checksums"][0].update(name="ghost"),
        "MANIFEST_INCONSISTENT",
    ),
    "window": (lambda document: document.update(window="after=start"), "MANIFEST_INCONSISTENT"),
    "field": (lambda document: document.pop("parts"), "MANIFEST_READ_ERROR"),
    "version": (lambda document: document.update(manifest_version=99), "MANIFEST_READ_ERROR"),
}


@pytest.mark.parametrize(("edit", "code"), EDITS.values(), ids=EDITS)
def test_manifest_that_contradicts_itself_is_seen_at_once(
    disk: Published, edit: Callable[[dict[str, Any]], Any], code: str
) -> None:
    """Even if its copy and marker follow: the lightest look reads what the manifest says of itself."""
    disk.commit()
    disk.edit_everywhere(edit)

    assert code in disk.codes("light")


def test_edited_checksum_is_seen(lake: Published) -> None:
    """One digit of one checksum: the marker tells at once, and the cells tell at full depth."""
    lake.commit()
    lake.edit_manifest(lambda document: document["column_checksums"][1].update(checksum="7"))

    assert ["SUCCESS_STALE"] == lake.codes("light")
    assert ["SUCCESS_STALE", "VALUE_CHECKSUM"] == lake.codes("full")


def test_file_that_is_no_manifest_could_not_be_verified(lake: Published) -> None:
    """A manifest of garbage says nothing, neither good nor bad."""
    lake.commit()
    lake.root.put(manifest_path(ALL), b"{broken")

    found = lake.validate("light")

    assert ["MANIFEST_READ_ERROR"] == [flaw.short for flaw in found.all_flaws]
    assert ("unknown", 1) == (found.verdict, found.exit_code)


def test_format_that_is_not_known_here_is_named(disk: Published) -> None:
    """A plugin is missing, or somebody edited the manifest: its rows cannot be looked at, and that is no crash."""
    disk.commit()
    disk.edit_everywhere(lambda document: document.update(format="lance"))

    flaws = disk.validate().all_flaws

    assert {"PART_READ_ERROR"} == {flaw.short for flaw in flaws}
    assert "format 'lance', which this Rivet does not know" in flaws[0].text


def test_manifest_larger_than_any_reader_takes_is_not_read(disk: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of that size is no manifest, and is not brought into memory."""
    disk.commit()
    monkeypatch.setattr("rivet_resources.prove.manifest.MANIFEST_BYTES", 100)

    assert ["MANIFEST_READ_ERROR"] == disk.codes("light")


# --- markers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", ["light", "full"])
def test_marker_of_another_manifest_is_stale(lake: Published, depth: Depth) -> None:
    """`_SUCCESS` must be the hash of `manifest.json`."""
    lake.commit()
    lake.root.put("_SUCCESS", success_marker(b"{}"))

    assert ["SUCCESS_STALE"] == lake.codes(depth)


@pytest.mark.parametrize(
    "content", [b"", b"done\n", b"xxh3:1349cde127705c16", b"xxh3:1349cde127705c16\n\n", b"x" * 5000]
)
def test_marker_that_is_none_is_malformed(disk: Published, content: bytes) -> None:
    """Empty, cut, longer, or something else."""
    disk.commit()
    disk.root.put("_SUCCESS", content)

    assert ["SUCCESS_MALFORMED"] == disk.codes("light")


@pytest.mark.parametrize("name", ["_SUCCESS", "manifest.json"])
def test_missing_marker_or_copy_is_stale(disk: Published, name: str) -> None:
    """Readers that go by the marker take such a folder for incomplete."""
    disk.commit(window=JANUARY)
    disk.root.delete([f"{JANUARY.folder}/{name}"])

    found = disk.validate("light")

    assert [("SUCCESS_STALE", f"dt=2026-01-31/{name}", JANUARY.key)] == [
        (flaw.short, flaw.path, flaw.window) for flaw in found.all_flaws
    ]


def test_copy_of_an_older_manifest_is_stale(disk: Published) -> None:
    """A pair that agrees with itself, and with no committed manifest: a run died before it wrote the new pair."""
    disk.commit()
    copy, marker = disk.bytes_of("manifest.json"), disk.bytes_of("_SUCCESS")
    disk.commit()
    disk.root.put("manifest.json", copy)
    disk.root.put("_SUCCESS", marker)

    assert ["SUCCESS_STALE"] == disk.codes("light")


def test_windows_of_one_folder_share_a_marker(disk: Published) -> None:
    """Increments lie in one folder, whose marker is that of the last one."""
    disk.commit(window=Window("after=start"), cursor=CursorMove(None, "5", "id"), mode="incremental")
    disk.commit(ORDERS.slice(0, 9), window=Window("after=5"), cursor=CursorMove("5", "9", "id"), mode="incremental")

    found = disk.validate()

    assert () == found.all_flaws
    assert ["after=5", "after=start"] == sorted(window.window for window in found.windows)


# --- the folder ----------------------------------------------------------------------------------


def test_object_that_no_manifest_lists_is_told(lake: Published) -> None:
    """It is worth knowing and no fault: exit code 0, with its size."""
    lake.commit()
    lake.root.put("left_behind.parquet", b"1234")

    found = lake.validate("sample")

    assert [("UNTRACKED_OBJECT", "left_behind.parquet")] == [(flaw.short, flaw.path) for flaw in found.all_flaws]
    assert "4 bytes" in found.all_flaws[0].text
    assert ("match", 0) == (found.verdict, found.exit_code)
    assert [] == lake.codes("light")


def test_many_untracked_objects_are_counted(disk: Published) -> None:
    """A folder full of other people's files does not fill the report."""
    disk.commit()
    for number in range(TOLD_OBJECTS + 5):
        disk.root.put(f"other_{number}.txt", b"1")

    assert TOLD_OBJECTS + 1 == len(disk.codes("sample"))
    assert "5 more objects, of 5 bytes" in disk.validate("sample").all_flaws[-1].text


def test_part_of_a_living_run_is_not_told(disk: Published) -> None:
    """Parts get their names before the manifest does: what a run is about to commit is its own."""
    disk.commit()
    mine = "orders_20200131T120000.000_abcdef"
    disk.root.put("orders_20200131_120000_000_abcdef.parquet", b"1234")

    with disk.state.lease("orders", "all", mine):
        during = disk.codes("sample")
    disk.state.files("orders")

    assert ([], ["UNTRACKED_OBJECT"]) == (during, disk.codes("sample"))


def test_store_that_cannot_be_listed_could_not_be_verified(disk: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the store is no fault of the data: exit code 1."""
    disk.commit()
    refuse(monkeypatch, "list")

    found = disk.validate()

    assert (["LIST_ERROR"], 1) == ([flaw.short for flaw in found.all_flaws], found.exit_code)


def test_parts_that_cannot_be_read_could_not_be_verified(disk: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails while a part is read says nothing of what was written."""
    disk.commit()

    def fail(file: Path) -> Any:
        raise OSError(errno.EIO, "Input/output error", str(file))

    monkeypatch.setattr("rivet_resources.prove.part.checksums", fail)

    found = disk.validate()

    assert ["PART_READ_ERROR"] * 4 == [flaw.short for flaw in found.all_flaws]
    assert ("unknown", 1) == (found.verdict, found.exit_code)


def refuse(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """Make a local folder refuse one kind of request."""

    def fail(*_: Any, **__: Any) -> Any:
        raise DestinationError("the store does not answer")

    monkeypatch.setattr(f"rivet_resources.destinations.local.LocalRoot.{method}", fail)


def test_unreadable_small_files_could_not_be_verified(disk: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifests that the store does not give."""
    disk.commit()
    refuse(monkeypatch, "read")

    found = disk.validate("light")

    assert (["MANIFEST_READ_ERROR"], 1) == ([flaw.short for flaw in found.all_flaws], found.exit_code)


def test_folder_without_a_manifest_is_legacy_or_required(disk: Published) -> None:
    """Files that nobody vouches for are not verified; where a run is known to have committed, it is a fault."""
    disk.root.put("old.parquet", b"1234")

    legacy, required = disk.validate(), disk.validate(is_required=True)

    assert ("unknown", 0, ()) == (legacy.verdict, legacy.exit_code, legacy.all_flaws)
    assert (["MANIFEST_REQUIRED"], 3) == ([flaw.short for flaw in required.all_flaws], required.exit_code)


def test_windows_that_form_no_chain_are_seen(disk: Published) -> None:
    """A lost increment is a gap that no single manifest shows."""
    for low, high in ((None, "5"), ("5", "9"), ("9", "12")):
        window = Window(f"after={low or 'start'}")
        disk.commit(ORDERS.slice(0, 9), window=window, cursor=CursorMove(low, high, "id"), mode="incremental")
    chain = disk.validate(cursor="12").all_flaws
    behind = disk.validate(cursor="9").all_flaws
    disk.root.delete([manifest_path(Window("after=5"))])

    gap = disk.validate(cursor="12").all_flaws

    assert () == chain
    assert [("BOUNDARY_DIFFERS", "advisory")] == [(flaw.short, flaw.kind) for flaw in behind]
    assert "MANIFEST_INCONSISTENT" in [flaw.short for flaw in gap]
    assert [] == [flaw for flaw in disk.validate("sample").all_flaws if flaw.short == "MANIFEST_INCONSISTENT"]


def test_commit_during_the_look_is_looked_at_again(disk: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that replaces the window while its parts are read makes no part look missing."""
    disk.commit()
    (Path(disk.root.uri) / disk.parts[0]).unlink()  # seen as missing in the first look
    looks = []
    real = validate.__globals__["_look"]

    def look(*args: Any) -> Any:
        looks.append(real(*args))
        if len(looks) == 1:
            disk.commit(ORDERS.slice(0, 10))
        return looks[-1]

    monkeypatch.setitem(validate.__globals__, "_look", look)

    found = disk.validate()

    assert ((), 10, 2) == (found.windows[0].flaws, found.windows[0].rows, len(looks))


# --- changes -------------------------------------------------------------------------------------


def changes(places: list[tuple[str, int]]) -> pa.Table:
    """Make changes at these places of a log."""
    rows = pa.table({"id": range(len(places)), "note": ["x"] * len(places)}, schema=CHANGES)
    table = as_inserts(rows, "00")
    table = table.set_column(1, table.schema.field(1), pa.array([pos for pos, _ in places]))
    return table.set_column(2, table.schema.field(2), pa.array([seq for _, seq in places], pa.int64()))


ORDER = {
    "ascending": ([("01", 1), ("01", 2), ("02", 1), ("0a", 1)], []),
    "a first copy": ([("05", 0)] * 4, []),
    "a copy, then changes": ([("05", 0), ("05", 0), ("05", 1), ("06", 1)], []),
    "one behind": ([("01", 1), ("03", 1), ("02", 1), ("04", 1)], ["CDC_POSITION"]),
    "one twice": ([("01", 1), ("01", 1), ("02", 1), ("03", 1)], ["CDC_POSITION"]),
    "sequence behind": ([("01", 1), ("01", 3), ("01", 2), ("03", 1)], ["CDC_POSITION"]),
}


@pytest.mark.parametrize("form", [Parquet(), Avro(), Ndjson(), Csv()], ids=["parquet", "avro", "ndjson", "csv"])
@pytest.mark.parametrize("pieces", [1, 2, 4])
@pytest.mark.parametrize(("places", "codes"), ORDER.values(), ids=ORDER)
def test_order_of_changes_is_seen(
    disk: Published, places: list[tuple[str, int]], codes: list[str], pieces: int, form: Any
) -> None:
    """Inside a part and from one part to the next, in every format; rows of a first copy share one place."""
    table = changes(places)
    if form.type == "csv":
        table = table.drop_columns(["__unchanged"])
    disk.commit(
        table, window=Window("after=start"), cursor=CursorMove(None, "ff", "__pos"), mode="cdc", consistency="log",
        pieces=pieces, format=form,
    )  # fmt: skip

    assert codes == disk.codes()


def test_facts_are_flat_numbers_and_names(disk: Published) -> None:
    """What a Dagster check shows: no value of a row, nothing nested."""
    disk.commit()
    disk.root.delete([disk.parts[0]])

    facts = facts_of(disk.validate())

    assert ("mismatch", 1, "RIVET_VERIFY_PART_MISSING") == (
        facts["rivet/validate_verdict"], facts["rivet/validate_flaws"], facts["rivet/validate_codes"]
    )  # fmt: skip
    assert all(isinstance(fact, str | int) for fact in facts.values())
