"""The promises that plugins are tested by: Rivet's own keep them, and each is broken by something that does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rivet_resources.conformance import DESTINATION_PROMISES, STEP_PROMISES, PromiseBroken
from rivet_resources.destinations.local import Local, LocalRoot
from rivet_resources.registry import STEPS

PAGE = pa.table({"id": [1, 2, 3, 4], "note": ["a", None, "", "ä"]})
OWN = {
    "drop": {"columns": ["note"]},
    "rename": {"columns": {"note": "text"}},
    "upper": {"columns": ["note"]},
    "mask": {"fields": ["note"]},
}
named = {"ids": lambda each: each.__name__}


@pytest.mark.parametrize("promise", DESTINATION_PROMISES, **named)
def test_folder_keeps_what_destinations_promise(promise: Callable[..., None], tmp_path: Path) -> None:
    """The simplest of Rivet's own."""
    promise(Local(path=str(tmp_path / "lake")), tmp_path)


class Careless:
    """A folder of which one method is another."""

    def __init__(self, path: Path, **others: Any) -> None:
        self.inner, self.others = Local(path=str(path)), others

    def root(self, export: str) -> Any:
        """Wrap the root."""
        careless = type("CarelessRoot", (LocalRoot,), self.others)
        root = self.inner.root(export)
        return careless(**{name: getattr(root, name) for name in root.__dataclass_fields__})


BROKEN: dict[str, dict[str, Any]] = {
    "staged_parts_are_invisible": {"staged_exists": lambda self, part: False},
    "discarded_parts_are_gone": {"discard": lambda self, parts: None},
    "attempts_do_not_meet": {"discard": lambda self, parts: [self.put(part.path, b"") for part in parts]},
    "parts_can_be_read_in_ranges": {"open": lambda self, path: __import__("io").BytesIO(b"rows")},
    "swaps_are_fenced": {"swap": lambda self, path, content, *, expected: self.put(path, content) or "1"},
    "small_objects_are_replaced_and_removed": {"delete": lambda self, paths: None},
    "listings_go_on_and_tell_versions": {"list_after": lambda self, path, *, most: dict.fromkeys(self.list(), "1")},
    "sweeps_spare_living_runs": {"sweep": lambda self, *, keep: len(list(keep))},
    "places_travel_and_can_be_proved": {"check": lambda self: self.put(".rivet_doctor_probe", b"1")},
}


@pytest.mark.parametrize("promise", DESTINATION_PROMISES, **named)
def test_place_that_breaks_a_promise_is_found(promise: Callable[..., None], tmp_path: Path) -> None:
    """Each check can fail, and says what should have been."""
    careless = Careless(tmp_path / "lake", **BROKEN[promise.__name__])

    with pytest.raises(PromiseBroken):
        promise(careless, tmp_path)


@pytest.mark.parametrize("word", OWN)
@pytest.mark.parametrize("promise", STEP_PROMISES, **named)
def test_own_steps_keep_what_steps_promise(promise: Callable[..., None], word: str) -> None:
    """Steps of Rivet, one of each sort."""
    promise(STEPS[word].model_validate({"type": word, **OWN[word]}), PAGE)


class Numbering:
    """A step that numbers the rows of a page: a page later begins anew."""

    def plan(self, schema: pa.Schema) -> Any:
        """Promise a column that it does not make."""
        from rivet_resources.contracts.transform import StepPlan

        return StepPlan(schema.append(pa.field("row", pa.int32())), {"row": frozenset({"nothing"})}, frozenset())

    def apply(self, table: pa.Table) -> pa.Table:
        """Number."""
        return table.append_column("row", pa.array(range(table.num_rows), pa.int64()))


@pytest.mark.parametrize("promise", STEP_PROMISES, **named)
def test_step_that_breaks_a_promise_is_found(promise: Callable[..., None]) -> None:
    """Each check can fail."""
    with pytest.raises(PromiseBroken):
        promise(Numbering(), PAGE)
