"""Processes for tests that cost no imports: each is forked from a server that has everything imported already.

Belongs here: starting `python -m …` in such a process, its streams, its end. Not here: what the process does. Tests
of what a start itself costs or sets (`test_demo.py`, `spark/test_runtime.py`, a handful per command) use the real
executable.

The server is Python's own (`multiprocessing`, start method `forkserver`): single-threaded when it forks, one per
test worker, gone with it. A command took 2.3 CPU s of imports without it (measured on two cores, 2026-11-22).
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO, Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.preloaded"])
ROOT = Path(__file__).parents[1]
RIVET = "rivet_assets.cli.main"  # the module behind `rivet`


class Process:
    """A running `python -m module arguments …`, or `python -c code arguments …`; the part of `Popen` that tests use.

    Its three streams are pipes of text; what it writes ends when it and all its children have ended.
    """

    def __init__(self, module: str, *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None):
        (taken, given), (out, out_written), (err, err_written) = os.pipe(), os.pipe(), os.pipe()
        theirs = [taken, out_written, err_written]
        self._process = _start(module, arguments, cwd, env, theirs)
        for file in theirs:
            os.close(file)
        self.stdin = os.fdopen(given, "w", encoding="utf-8")
        self.stdout, self.stderr = os.fdopen(out, encoding="utf-8"), os.fdopen(err, encoding="utf-8")
        self.args = [module, *arguments]
        self.pid = int(self._process.pid or 0)

    @property
    def returncode(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; the exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self._process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Close its input, read both streams to their ends, and wait; (stdout, stderr).

        Raises:
            subprocess.TimeoutExpired: it still runs; what it wrote so far is lost.
        """
        texts = ["", ""]
        with suppress(BrokenPipeError):
            self.stdin.close()

        def read(index: int, stream: IO[str]) -> None:
            with suppress(ValueError), stream:  # closed by who lost patience
                texts[index] = stream.read()

        readers = [
            threading.Thread(target=read, args=each, daemon=True) for each in enumerate((self.stdout, self.stderr))
        ]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join()
        return texts[0], texts[1]

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        with suppress(ProcessLookupError):
            self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            with suppress(BrokenPipeError):
                stream.close()
        self.wait()


def run(
    module: str,
    *arguments: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 600,
    stdin: bytes = b"",
) -> subprocess.CompletedProcess[str]:
    """Run `python -m module arguments …`, or `python -c code …`, to its end in a process of its own.

    Raises:
        subprocess.TimeoutExpired: it did not end in time; it is killed.
    """
    # Files, not pipes: what a process leaves behind may keep its streams open.
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin)
        given.seek(0)
        process = _start(module, arguments, cwd, env, [file.fileno() for file in (given, out, err)])
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired([module, *arguments], timeout)
        for file in (out, err):
            file.seek(0)
        texts = out.read().decode(), err.read().decode()
    return subprocess.CompletedProcess([module, *arguments], process.exitcode, *texts)


def _start(
    module: str, arguments: Sequence[str], cwd: Path | None, env: Mapping[str, str] | None, files: Sequence[int]
) -> Any:
    """Start it with these files as its streams; a `multiprocessing.Process`."""
    told = dict(os.environ if env is None else env)
    process = CONTEXT.Process(target=_become, args=(module, tuple(arguments), str(cwd or ROOT), told, _Passed(files)))
    process.start()
    return process


class _Passed:
    """File descriptors that go with a process when it is started."""

    def __init__(self, files: Sequence[int]) -> None:
        self.files = list(files)

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, ([DupFd(file) for file in self.files],)


def _received(passed: Sequence[Any]) -> list[int]:
    return [each.detach() for each in passed]


def _become(module: str, arguments: Sequence[str], cwd: str, env: Mapping[str, str], files: Sequence[int]) -> None:
    """Be what `python -m module arguments …` (or `-c`) would be, to its end."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None
    _take_streams(files)
    threading.current_thread().name = "MainThread"
    sys.argv = [module, *arguments]
    if module == "-c":
        text = textwrap.dedent(arguments[0])
        sys.argv = ["-c", *arguments[1:]]
        code = _exit_code(lambda: exec(compile(text, "<string>", "exec"), {"__name__": "__main__"}))
    else:
        sys.modules.pop(module, None)  # imported before: it is to run, as `__main__`
        code = _exit_code(lambda: runpy.run_module(module, run_name="__main__", alter_sys=True))
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _take_streams(files: Sequence[int]) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]


def _exit_code(body: Callable[[], object]) -> int:
    """Run this; the exit code that Python would end with."""
    try:
        body()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0
