"""Show that the suite notices faults: `python -m tests.mutations [NAME …] [--list] [--jobs N] [-- PYTEST …]`.

Belongs here: planting one fault at a time in a copy of the repository, running the tests that guard it there, and the
verdict. Not here: which faults, and what guards them (`table.py`). The repository itself is never touched.

A fault is caught when its tests fail with it and pass without it. `--tests-from FOLDER` takes the tests of another
checkout into the copies, to compare what an older suite catches: tests that it has not are left out; where the file is
there but not the test, the whole file is run; and what fails there by itself does not count.
"""

from __future__ import annotations

import argparse
import compileall
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from tests.mutations.table import FAULTS, Fault

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
PRODUCT = ("rivet_assets", "rivet_resources")
PYTEST = ("-q", "-n", "0", "-p", "no:cacheprovider", "--no-header", "--tb=line")
GOODBYE_SECONDS = 30.0  # for pytest to stop its servers once it was interrupted
FAILED, IMPORTS_NOTHING, NO_SUCH_TEST = 1, 2, frozenset({4, 5})  # exit codes of pytest
NAME_WIDTH = max(len(fault.name) for fault in FAULTS)

Answer = Literal[
    "caught", "not caught", "known gap", "skipped", "no such test", "does not apply", "not importable", "fails anyway"
]


@dataclass(frozen=True)
class Ran:
    """One run of pytest; `code` is None where it did not end in time."""

    code: int | None
    seconds: float
    cpu_seconds: float
    output: str

    @property
    def has_failed(self) -> bool:
        """Return whether a test failed; one that hangs has."""
        return self.code in (None, FAILED)

    @property
    def has_passed(self) -> bool:
        """Return whether a test passed and none failed; not where all were skipped."""
        return self.code == 0 and re.search(r"\b[1-9]\d* passed", self.output) is not None

    @property
    def failures(self) -> tuple[str, ...]:
        """Return the tests that failed, in their order; else why none is known."""
        if self.code is None:
            return ("it did not end in time",)
        found = re.findall(r"^(?:FAILED|ERROR) (\S+?(?:\[.*\])?)(?: - |$)", self.output, re.MULTILINE)
        return tuple(found) or (self.last_line,)

    @property
    def last_line(self) -> str:
        """Return how pytest sums it up."""
        return next((line.strip() for line in reversed(self.output.splitlines()) if line.strip()), "no output")


@dataclass(frozen=True)
class Verdict:
    """What became of one fault."""

    fault: Fault
    answer: Answer
    text: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def __str__(self) -> str:
        """Return one line; two where somebody must act."""
        cost = f"{self.seconds:5.1f} s {self.cpu_seconds:5.1f} CPU s"
        line = f"{self.answer:<14} {self.fault.name:<{NAME_WIDTH}} {cost}  {self.text}".rstrip()
        return line if self.answer == "caught" else f"{line}\n{'':<15}{self.fault.file}: {self.fault.harm}"


class NotTheCopy(Exception):
    """Tests in a copy would import the product from somewhere else."""


@dataclass
class Workshop:
    """A folder of copies: one without a fault, and one for each fault while its tests run."""

    folder: Path
    timeout_seconds: float
    more: tuple[str, ...] = ()  # arguments for pytest
    tests_from: Path | None = None
    _clean_runs: dict[tuple[str, ...], Ran] = field(default_factory=dict)
    _running: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Write the copy without a fault: what git tracks, as it stands now, and what is new among the tests.

        Raises:
            NotTheCopy
        """
        self.clean = self.folder / "clean/copy"
        for name in [*_listed(), *_listed("--others", "--exclude-standard", "--", "tests")]:
            if (ROOT / name).is_file():  # else it was removed, and git was not told
                (self.clean / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.clean / name)
        if self.tests_from is not None:
            shutil.rmtree(self.clean / "tests")
            unwanted = shutil.ignore_patterns("__pycache__", ".pytest_cache")
            shutil.copytree(self.tests_from, self.clean / "tests", ignore=unwanted)
        for package in PRODUCT:  # once, and not in every copy anew
            compileall.compile_dir(self.clean / package, quiet=2)
        _share(self.clean)
        refuse_others(self.clean)

    def judge(self, fault: Fault) -> Verdict:
        """Plant a fault and run its tests, there and, where they fail, in the copy without it.

        Raises:
            NotTheCopy
        """
        before = (self.clean / fault.file).read_text() if (self.clean / fault.file).is_file() else ""
        if flaw := flaw_of(fault, before):
            return Verdict(fault, "does not apply", flaw)
        tests = self._guards(fault)
        if not tests:
            return Verdict(fault, "no such test")
        with self._planted(fault, before.replace(fault.old, fault.new)) as copy:
            ran = self._pytest(copy, tests)
        clean = self._clean_run(tests) if ran.has_failed else None
        answer, text = self._answer(fault, ran, clean)
        return Verdict(fault, answer, text, ran.seconds, ran.cpu_seconds)

    def _answer(self, fault: Fault, ran: Ran, clean: Ran | None) -> tuple[Answer, str]:
        """Judge a run with a fault, and the one without it that followed a failure."""
        if clean is not None:
            fresh = [test for test in ran.failures if test not in clean.failures]
            is_caught = clean.has_passed or (fresh and self.tests_from is not None)
            return ("caught", fresh[0]) if is_caught else ("fails anyway", clean.failures[0])
        if ran.code in NO_SUCH_TEST:
            return "no such test", ran.last_line
        if ran.code == IMPORTS_NOTHING:
            return "not importable", ran.failures[0]
        if not ran.has_passed:
            return "skipped", ran.last_line
        return ("known gap", fault.known_gap) if fault.known_gap else ("not caught", ran.last_line)

    def interrupt(self) -> None:
        """Let the runs of pytest that go on come to their end."""
        for process in tuple(self._running):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGINT)

    def _guards(self, fault: Fault) -> tuple[str, ...]:
        """Return pytest's arguments for a fault's tests, as far as there are such; () when there is none."""
        if self.tests_from is None:
            return fault.tests
        found = tuple(dict.fromkeys(filter(None, (_there(test, self.clean) for test in fault.tests))))
        return found if any(test.startswith("tests/") for test in found) else ()

    @contextmanager
    def _planted(self, fault: Fault, content: str) -> Iterator[Path]:
        """Make a copy with a fault in it, and remove it afterwards."""
        copy = self.folder / fault.name / "copy"
        try:
            shutil.copytree(self.clean, copy)
            _share(copy)
            file = copy / fault.file
            file.write_text(content)
            # A compiled module counts as current by the second and the size of its source, which may be the same.
            for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
                compiled.unlink()
            refuse_others(copy)
            yield copy
        finally:
            shutil.rmtree(copy.parent, ignore_errors=True)

    def _clean_run(self, tests: tuple[str, ...]) -> Ran:
        """Run tests without a fault, once for all faults that they guard."""
        if tests not in self._clean_runs:
            self._clean_runs[tests] = self._pytest(self.clean, tests)
        return self._clean_runs[tests]

    def _pytest(self, copy: Path, tests: tuple[str, ...]) -> Ran:
        stop = () if self.tests_from else ("-x",)  # an older suite may fail at first where the product moved on
        command = [sys.executable, "-m", "pytest", *PYTEST, *stop, *tests, *self.more]
        began = time.monotonic()
        with tempfile.TemporaryFile() as said:  # not a pipe: what tests leave behind may keep it open
            process = subprocess.Popen(
                command, cwd=copy, env=_environment(copy), stdin=subprocess.DEVNULL, stdout=said,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            self._running.add(process.pid)
            code, cpu_seconds = awaited(process, self.timeout_seconds)
            self._running.discard(process.pid)
            said.seek(0)
            return Ran(code, time.monotonic() - began, cpu_seconds, said.read().decode(errors="replace"))


def flaw_of(fault: Fault, before: str) -> str:
    """Return why a fault cannot be planted in this text of its file; '' when it can."""
    if before.count(fault.old) != 1:
        return f"the old text is there {before.count(fault.old)} times"
    try:
        compile(before.replace(fault.old, fault.new), fault.file, "exec")
    except SyntaxError as error:
        return f"the new text is no Python: {error.msg}, line {error.lineno}"
    return "" if fault.old != fault.new else "the new text is the old one"


def awaited(process: subprocess.Popen[bytes], limit_seconds: float) -> tuple[int | None, float]:
    """Wait for a process: (exit code, None where it had to be ended, CPU seconds of it and its children)."""
    began, is_late = time.monotonic(), False
    while True:
        ended, status, used = os.wait4(process.pid, os.WNOHANG)
        if ended:
            process.returncode = os.waitstatus_to_exitcode(status)
            return None if is_late else process.returncode, used.ru_utime + used.ru_stime
        waited = time.monotonic() - began
        if waited > limit_seconds + GOODBYE_SECONDS:
            os.killpg(process.pid, signal.SIGKILL)
        elif waited > limit_seconds and not is_late:
            is_late = True
            process.send_signal(signal.SIGINT)
        time.sleep(0.05)


# --- copies --------------------------------------------------------------------------------------


def refuse_others(copy: Path) -> None:
    """Prove that a process started in a copy imports the copy's packages, whatever is installed.

    Raises:
        NotTheCopy
    """
    names = (*PRODUCT, "tests.conftest")
    asked = f"import importlib.util as u; print(*(u.find_spec(name).origin for name in {names!r}), sep='\\n')"
    command = [sys.executable, "-c", asked]
    told = subprocess.run(command, cwd=copy, env=_environment(copy), capture_output=True, text=True, check=True)
    strange = [path for path in told.stdout.split("\n") if path and not Path(path).is_relative_to(copy)]
    if strange:
        raise NotTheCopy(f"Tests in {copy} would import {', '.join(strange)}. Is PYTHONSAFEPATH or PYTHONHOME set?")


def _environment(copy: Path) -> dict[str, str]:
    """Return the environment of a copy's processes: its packages come before installed ones."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTEST_ADDOPTS", "RIVET_TEST_SHARE")}
    return kept | {"PYTHONPATH": str(copy)}


def _share(copy: Path) -> None:
    """Put what is shared beside a copy, where the repository has it."""
    if SHARED.exists():
        (copy.parent / SHARED.name).symlink_to(SHARED)


def _listed(*wanted: str) -> list[str]:
    """List files as git knows them."""
    told = subprocess.run(["git", "ls-files", "-z", *wanted], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in told.stdout.split("\0") if name]


def _there(argument: str, copy: Path) -> str:
    """Return a test as another checkout has it: itself, else its whole file; '' when there is not even that.

    Cases may have other names there, so a test is run in all of its cases.
    """
    if not argument.startswith("tests/"):
        return argument
    path, _, test = argument.partition("::")
    if not (copy / path).exists():
        return ""
    name = test.partition("[")[0]
    return f"{path}::{name}" if name and f"def {name}(" in (copy / path).read_text() else path


# --- the command ---------------------------------------------------------------------------------


def main(given: Sequence[str]) -> int:
    """Judge the faults that were asked for, all without a name; 1 when one is neither caught nor a known gap."""
    own, more = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, ())
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a fault, or a pattern such as lease_*")
    parser.add_argument("--list", action="store_true", help="name the faults, and run nothing")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="faults at a time")
    parser.add_argument("--timeout", type=float, default=240, metavar="SECONDS", help="for the tests of one fault")
    parser.add_argument("--tests-from", type=Path, metavar="FOLDER", help="the tests folder of another checkout")
    args = parser.parse_args(own)
    strange = [name for name in args.names if not any(fnmatchcase(fault.name, name) for fault in FAULTS)]
    if strange:
        parser.error(f"there is no fault {', '.join(strange)}; --list names them")
    chosen = [fault for fault in FAULTS if not args.names or any(fnmatchcase(fault.name, n) for n in args.names)]
    if args.list:
        for fault in chosen:
            print(f"{fault.name:<{NAME_WIDTH}} {fault.file}: {fault.harm}")
        return 0
    with tempfile.TemporaryDirectory(prefix="rivet-mutations-") as folder:
        os.chmod(folder, 0o755)  # a server's own user reads what tests hand it
        tests_from = args.tests_from.resolve() if args.tests_from else None
        verdicts = _judged(chosen, Workshop(Path(folder), args.timeout, tuple(more), tests_from), jobs=args.jobs)
    gaps = sum(verdict.answer == "known gap" for verdict in verdicts)
    caught = sum(verdict.answer == "caught" for verdict in verdicts)
    print(f"{caught} of {len(verdicts)} faults caught" + (f"; {gaps} known to be missed" if gaps else ""))
    return 0 if caught + gaps == len(verdicts) else 1


def _judged(faults: Sequence[Fault], workshop: Workshop, *, jobs: int) -> list[Verdict]:
    verdicts = []
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for verdict in pool.map(workshop.judge, faults):
                print(verdict, flush=True)
                verdicts.append(verdict)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            workshop.interrupt()
            raise
    return verdicts


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
