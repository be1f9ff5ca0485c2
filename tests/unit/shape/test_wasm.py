"""Steps in WebAssembly: what an honest module makes of rows, and that a hostile one makes nothing of them.

Modules are written as text, which wasmtime turns into what a compiler would make; `end_to_end/test_wasm_rust.py` has
one by a compiler.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from rivet_resources.conformance import STEP_PROMISES
from rivet_resources.contracts.settings import beside
from rivet_resources.contracts.transform import RowRefused, TransformError
from rivet_resources.shape.transforms.pipeline import plan
from rivet_resources.shape.transforms.separate import separate
from rivet_resources.shape.transforms.wasm import Wasm

wasmtime = pytest.importorskip("wasmtime", reason="wasmtime is not installed")

PAGE = pa.table({"id": pa.array([1, 2, 3, 4]), "email": ["ann@x.org", None, "žluť", ""], "note": ["a", "b", "c", "d"]})

# Answers with its input; `{transform}` and `{plan}` may do otherwise before.
MODULE = """
(module {imports}
  (memory (export "memory") {pages})
  (global $top (mut i32) (i32.const 1024))
  (data (i32.const 16) "{data}")
  (func (export "rivet_abi") (result i32) (i32.const {abi}))
  (func $alloc (export "rivet_alloc") (param $n i32) (result i32)
    (local $at i32)
    (local.set $at (global.get $top))
    (global.set $top (i32.add (global.get $top) (i32.and (i32.add (local.get $n) (i32.const 7)) (i32.const -8))))
    (if (i32.gt_u (global.get $top) (i32.mul (memory.size) (i32.const 65536)))
      (then (drop (memory.grow (i32.add (i32.const 1) (i32.shr_u (local.get $n) (i32.const 16)))))))
    (local.get $at))
  (func $echo (param $at i32) (param $n i32) (result i64)
    (i64.or (i64.shl (i64.extend_i32_u (local.get $at)) (i64.const 32)) (i64.extend_i32_u (local.get $n))))
  (func (export "rivet_plan") (param $at i32) (param $n i32) (result i64) {plan}
    (call $echo (local.get $at) (local.get $n)))
  (func (export "rivet_transform") (param $at i32) (param $n i32) (result i64) {transform}
    (call $echo (local.get $at) (local.get $n)))
  {more})
"""


def module(folder: Path, transform: str = "", **parts: str) -> Path:
    """Write a module."""
    given = {"imports": "", "pages": "4", "data": "", "abi": "1", "plan": "", "more": "", "transform": transform}
    path = folder / "step.wasm"
    path.write_bytes(wasmtime.wat2wasm(MODULE.format(**given | parts)))
    return path


def step(path: Path, **keys: object) -> Wasm:
    """Make the block of a module for the column `email`."""
    return Wasm.model_validate({"type": "wasm", "module": str(path), "columns": ["email"], **keys})


def literal(content: bytes) -> str:
    """Write bytes as text of a module."""
    return "".join(f"\\{byte:02x}" for byte in content)


def answering(folder: Path, content: bytes, **parts: str) -> Path:
    """Write a module that answers each batch with the same bytes."""
    answer = f"(return (call $echo (i32.const 16) (i32.const {len(content)})))"
    return module(folder, answer, data=literal(content), **parts)


def stream(table: pa.Table, **options: object) -> bytes:
    """Write a table as one batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


# --- honest --------------------------------------------------------------------------------------


@pytest.mark.parametrize("promise", STEP_PROMISES, ids=lambda each: each.__name__)
def test_module_keeps_what_steps_promise(promise, tmp_path: Path) -> None:
    """A module is a step as any other."""
    promise(step(module(tmp_path)), PAGE)


def test_module_sees_its_columns_only_and_others_stay(tmp_path: Path) -> None:
    """Rows come out in order, and the columns it was not given are the arrays they were."""
    planned = plan([step(module(tmp_path))], PAGE.schema)

    shaped = planned.apply(PAGE)

    assert shaped.equals(PAGE)
    assert planned.origins == {"id": {"id"}, "email": {"email"}, "note": {"note"}}
    assert planned.masked == {"email"}
    assert shaped.schema.field("email").metadata[b"rivet.derived"] == b"wasm(step.wasm)"


def test_planned_columns_stand_in_place_of_those_given(tmp_path: Path) -> None:
    """A column may be renamed, or be another type; it comes last then."""
    made = pa.table({"length": pa.array([9, None, 5, 0], pa.int32())})
    schema = made.schema.serialize().to_pybytes()
    planning = f"(return (call $echo (i32.const 512) (i32.const {len(schema)})))"
    content = stream(made)
    assert len(content) < 496
    more = f'(data (i32.const 512) "{literal(schema)}")'

    shaped = plan([step(answering(tmp_path, content, plan=planning, more=more))], PAGE.schema).apply(PAGE)

    assert shaped.column_names == ["id", "note", "length"]
    assert shaped.column("length").to_pylist() == [9, None, 5, 0]


def test_large_pages_are_cut_to_the_memory(tmp_path: Path) -> None:
    """A page of more than the module may hold goes through it in pieces."""
    page = pa.table({"email": ["x" * 1000] * 4000})  # 4 MB

    assert step(module(tmp_path), memory="1MB").apply(page).equals(page)


def test_when_and_names_of_many_columns(tmp_path: Path) -> None:
    """`when` and globs are as in other steps; here the module gets one row of two columns."""
    made = stream(pa.table({"email": ["z"], "note": ["y"]}))
    chosen = step(answering(tmp_path, made), columns=["e*", "note"], when="id = 3")

    shaped = plan([chosen], PAGE.schema).apply(PAGE)

    assert shaped.column("email").to_pylist() == ["ann@x.org", None, "z", ""]
    assert shaped.column("note").to_pylist() == ["a", "b", "y", "d"]


def test_module_travels_without_its_file(tmp_path: Path) -> None:
    """Workers of a cluster get it by pickle; a file that changes later changes no run that has begun."""
    made = step(module(tmp_path))
    (tmp_path / "step.wasm").unlink()

    assert pickle.loads(pickle.dumps(made)).apply(PAGE).equals(PAGE)


def test_module_is_looked_up_beside_the_configuration(tmp_path: Path) -> None:
    """As every file that a configuration names."""
    module(tmp_path)
    with beside(tmp_path / "rivet.yaml"):
        assert step(Path("step.wasm")).apply(PAGE).equals(PAGE)


def test_other_content_is_another_step(tmp_path: Path) -> None:
    """Plans and fingerprints see that a file was exchanged, and `sha256` refuses it."""
    first = step(module(tmp_path))
    second = step(module(tmp_path, pages="5"))

    assert first.model_dump()["sha256"] != second.model_dump()["sha256"]
    with pytest.raises(ValueError, match=f"another `sha256`: {second.sha256}"):
        step(tmp_path / "step.wasm", sha256=first.sha256)


def test_config_reaches_the_module(tmp_path: Path) -> None:
    """`config` comes as JSON, sorted; a module without `rivet_init` takes none."""
    init = """(func (export "rivet_init") (param $at i32) (param $n i32) (result i32)
      (i32.sub (i32.load8_u (i32.add (local.get $at) (i32.const 6))) (i32.const 55)))"""  # the 7 of {"k": 7}

    assert step(module(tmp_path, more=init), config={"k": 7}).apply(PAGE).equals(PAGE)
    with pytest.raises(RowRefused, match="refused its `config` with its code 1"):
        step(tmp_path / "step.wasm", config={"k": 8}).apply(PAGE)
    with pytest.raises(TransformError, match="takes no `config`"):
        step(module(tmp_path), config={"k": 7}).plan(PAGE.schema)


def test_pages_share_nothing(tmp_path: Path) -> None:
    """What a module counts begins anew with each call."""
    counting = """(i32.store (i32.const 8) (i32.add (i32.load (i32.const 8)) (i32.const 1)))
      (if (i32.gt_u (i32.load (i32.const 8)) (i32.const 1)) (then unreachable))"""
    made = step(module(tmp_path, counting))

    assert made.apply(PAGE).equals(made.apply(PAGE))


# --- rows that it refuses ------------------------------------------------------------------------


def test_rows_that_a_module_marks_are_refused(tmp_path: Path) -> None:
    """`rivet_refused` names them, and `on_error` says what becomes of them."""
    marked = pa.table({"email": ["a", "b", "c", "d"], "rivet_refused": [False, True, False, None]})
    made = plan([step(answering(tmp_path, stream(marked)))], PAGE.schema)

    with pytest.raises(RowRefused, match=r"step 1 \(wasm\).* refused 2 of them") as told:
        made.apply(PAGE)

    assert told.value.rows.tolist() == [False, True, False, True]


def test_a_row_that_makes_it_break_off_is_found(tmp_path: Path) -> None:
    """A trap names no row: the page is halved until the row stands alone, and the others go on."""
    only = """(local $i i32) (loop $next
      (if (i32.eq (i32.and (i32.load (i32.add (local.get $at) (local.get $i))) (i32.const 0xffffff))
                 (i32.const 0x747563))
        (then unreachable))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $i) (i32.sub (local.get $n) (i32.const 4)))))"""  # the text `cut`
    page = pa.table({"id": [1, 2, 3], "email": ["a", "cut", "b"]})
    made = plan([step(module(tmp_path, only))], page.schema)

    shaped, refused, _ = separate(made, page, ["dead_letter"])

    assert shaped.column("email").to_pylist() == ["a", "b"]
    assert [each.rows.column("id").to_pylist() for each in refused] == [[2]]


# --- hostile -------------------------------------------------------------------------------------

HOSTILE = {
    "loops": ("(loop $for_ever (br $for_ever))", "took more than 0.5 s"),
    "traps": ("unreachable", "broke off"),
    "recurses": ("(return (call $deep (local.get $at) (local.get $n)))", "broke off"),
    "answers outside its memory": ("(return (i64.const 0x7fffffff7fffffff))", "outside its memory"),
    "answers with a length of 4 GB": ("(return (i64.const 0x00000010ffffffff))", "outside its memory"),
    "answers with nothing": ("(return (i64.const 0x0000001000000000))", "other than one plain batch"),
    "answers with zeros": ("(return (i64.const 0x0000800000000400))", "other than one plain batch"),
    "refuses": ("(return (i64.const 7))", "refused with its code 7"),
    "divides by zero": ("(drop (i32.div_s (i32.const 1) (i32.const 0)))", "broke off"),
}
DEEP = """(func $deep (param $at i32) (param $n i32) (result i64)
  (i64.add (call $deep (local.get $at) (local.get $n)) (i64.const 1)))"""


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_module_ends_with_its_page_refused(name: str, tmp_path: Path) -> None:
    """It ends, says why, and shows no value; the next page has a module of its own."""
    transform, why = HOSTILE[name]
    made = step(module(tmp_path, transform, more=DEEP), seconds=0.5)
    planned = plan([made], PAGE.schema)

    with pytest.raises(RowRefused, match=why) as told:
        planned.apply(PAGE)

    assert "ann" not in str(told.value)
    assert told.value.is_of_rows == (name in ("traps", "recurses", "refuses", "divides by zero"))
    assert step(module(tmp_path)).apply(PAGE).equals(PAGE)


def test_module_gets_no_more_memory_than_it_may_have(tmp_path: Path) -> None:
    """Growing above `memory` fails for the module; one that begins above it is not started."""
    grows = """(if (i32.ne (memory.grow (i32.const 100)) (i32.const -1)) (then (return (i64.const 5))))"""
    assert step(module(tmp_path, grows), memory="2MB").apply(PAGE).equals(PAGE)
    with pytest.raises(RowRefused, match="code 5"):
        step(tmp_path / "step.wasm", memory="64MB").apply(PAGE)

    with pytest.raises(TransformError, match="could not be started within its limits"):
        step(module(tmp_path, pages="64"), memory="2MB").plan(PAGE.schema)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (stream(PAGE.select(["email"]).slice(0, 3)), "answered with 3 rows"),
        (stream(pa.concat_tables([PAGE.select(["email"])] * 2).combine_chunks()), "answered with 8 rows"),
        (stream(PAGE.select(["note"])), "other columns than it planned"),
        (stream(pa.table({"email": [1, 2, 3, 4]})), "other columns than it planned"),
        (stream(pa.table({"email": list("abcd"), "rivet_refused": [1, 0, 0, 0]})), "no boolean"),
        (stream(pa.concat_tables([PAGE.select(["email"]).slice(0, 2)] * 2)), "other than one plain batch"),
        (stream(PAGE.select(["email"]), compression="zstd"), "other than one plain batch"),
        (stream(PAGE.select(["email"]))[:-9], "damaged|other than one plain batch"),
    ],
    ids=["too few", "too many", "other name", "other type", "marks", "two batches", "packed", "cut"],
)
def test_answers_other_than_planned_are_refused(answer: bytes, why: str, tmp_path: Path) -> None:
    """What a module returns is its word against its plan, and no row is to blame."""
    with pytest.raises(RowRefused, match=why) as told:
        step(answering(tmp_path, answer, pages="8")).apply(PAGE)

    assert not told.value.is_of_rows


def test_text_that_is_none_is_refused(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 would reach every reader of the file."""
    bad = stream(PAGE.select(["email"])).replace(b"ann@x.org", b"\xff\xfe@x.org\x80")

    with pytest.raises(RowRefused, match="a batch that is damaged"):
        step(answering(tmp_path, bad, pages="8")).apply(PAGE)


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"imports": '(import "wasi_snapshot_preview1" "fd_write" (func))'}, "wants wasi_snapshot_preview1.fd_write"),
        ({"abi": "2"}, "is of interface version 2; this Rivet has 1"),
        ({"plan": "(return (i64.const 3))"}, "refused with its code 3"),
        ({"plan": "(return (i64.const 0x0000001000000000))"}, "planned something that is no Arrow schema"),
    ],
)
def test_module_that_does_not_fit_is_refused_before_any_row(parts: dict[str, str], why: str, tmp_path: Path) -> None:
    """A plan says so, with the file's name."""
    with pytest.raises(TransformError, match=f"step.wasm' {why}"):
        step(module(tmp_path, **parts)).plan(PAGE.schema)


def test_plan_cannot_take_another_columns_name(tmp_path: Path) -> None:
    """Nor one that is reserved."""
    for name in ("id", "rivet_refused"):
        schema = pa.schema([(name, pa.int64())]).serialize().to_pybytes()
        planning = f"(return (call $echo (i32.const 16) (i32.const {len(schema)})))"
        with pytest.raises(TransformError, match=f"plans '{name}', which exists or is reserved"):
            step(module(tmp_path, plan=planning, data=literal(schema))).plan(PAGE.schema)


@pytest.mark.parametrize(("content", "why"), [(b"no", "no WebAssembly module"), (b"\0asm\x01\0\0\0", "lacks memory")])
def test_other_files_are_refused(content: bytes, why: str, tmp_path: Path) -> None:
    """A plan says what the file is not."""
    (tmp_path / "step.wasm").write_bytes(content)

    with pytest.raises(TransformError, match=why):
        step(tmp_path / "step.wasm").plan(PAGE.schema)


def test_missing_file_is_refused_in_the_configuration(tmp_path: Path) -> None:
    """The key is named before anything runs."""
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        step(tmp_path / "none.wasm")
