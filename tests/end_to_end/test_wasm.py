"""A step in WebAssembly as its author makes it: Rust, a compiler, a line of YAML, a run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests import processes
from tests.lab import Lab, lab_in
from tests.lab_engines import ENGINES

pytest.importorskip("wasmtime", reason="wasmtime is not installed")

TARGET = "wasm32-unknown-unknown"
SOURCE = Path(__file__).parent / "wasm_step/increment.rs"


def has_target() -> bool:
    """Return whether a Rust compiler for WebAssembly is here."""
    if shutil.which("rustc") is None:
        return False
    libraries = subprocess.run(
        ["rustc", "--print", "target-libdir", "--target", TARGET], capture_output=True, text=True, check=False
    ).stdout.strip()
    return bool(libraries) and any(Path(libraries).glob("libcore-*.rlib"))


needs_rust = pytest.mark.skipif(not has_target(), reason=f"no Rust for WebAssembly: rustup target add {TARGET}")


@pytest.fixture
def lab(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A SQLite file with three orders, and the compiled step beside the configuration."""
    made = lab_in(tmp_path, ENGINES["sqlite"], request, monkeypatch)
    made.create("orders", {"id": "whole", "note": "note"}, ddl={"amount": "INTEGER NOT NULL"})
    made.insert("orders", [{"id": n, "note": f"n{n}", "amount": n * 10} for n in (1, 2, 3)])
    options = ["--crate-type=cdylib", "--edition=2021", "-O", "-C", "panic=abort", "-o", str(tmp_path / "step.wasm")]
    subprocess.run(["rustc", "--target", TARGET, *options, str(SOURCE)], check=True, capture_output=True)
    return made


BLOCK = """
name: orders
table: orders
mode: full
on_error: {policy}
transforms: [{{type: wasm, module: step.wasm, columns: [amount]}}]
"""


def rivet(lab: Lab, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the lab's folder."""
    return processes.run(processes.RIVET, *arguments, cwd=lab.folder)


@needs_rust
def test_step_in_rust_shapes_an_export(lab: Lab) -> None:
    """`rivet run` and `plan`, then `apply`: the column is the step's, the others are the source's."""
    lab.config(BLOCK.format(policy="stop"))

    done = [
        rivet(lab, "run", "-c", "rivet.yaml"),
        rivet(lab, "plan", "-c", "rivet.yaml", "-o", "plan.json"),
        rivet(lab, "apply", "plan.json"),
    ]

    assert [0, 0, 0] == [each.returncode for each in done], [each.stderr for each in done]
    rows = [(row["id"], row["note"], row["amount"]) for row in lab.rows("orders")]
    assert [(1, "n1", 11), (2, "n2", 21), (3, "n3", 31)] == rows


@needs_rust
def test_row_that_the_step_refuses_goes_to_the_quarantine(lab: Lab) -> None:
    """Its number is too large to add one to: the module says 9, and halving finds which row it means."""
    lab.sql(f"INSERT INTO orders (id, note, amount) VALUES (4, 'top', {2**63 - 1})")
    stopped = lab.export(BLOCK.format(policy="stop"))

    outcome = lab.export(BLOCK.format(policy="dead_letter"))

    assert not stopped.success
    assert "refused with its code 9" in stopped.message
    assert str(2**63 - 1) not in stopped.message
    assert outcome.success, outcome.message
    assert lab.ids("orders") == [1, 2, 3]
    listed = rivet(lab, "quarantine", "show", "-e", "orders", "-c", "rivet.yaml")
    assert "module 'step.wasm' refuses it" in listed.stdout
    assert str(2**63 - 1) not in listed.stdout  # its columns count as masked


@needs_rust
def test_a_changed_module_needs_a_new_plan(lab: Lab) -> None:
    """What was approved is the step as it was."""
    lab.config(BLOCK.format(policy="stop"))
    rivet(lab, "plan", "-c", "rivet.yaml", "-o", "plan.json")
    with Path("step.wasm").open("ab") as file:
        file.write(b"\0\x02\x01x")  # a section of its own, named x, that means nothing

    done = rivet(lab, "apply", "plan.json")

    assert done.returncode == 4
    assert "orders: its configuration is not the planned one" in done.stderr
