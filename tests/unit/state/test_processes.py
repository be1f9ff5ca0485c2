"""The state store between processes: leases, deaths, races and many writers, on SQLite and on PostgreSQL.

The other processes are real: started, killed and waited for.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from rivet_resources.conformance.lines import Proxy, proxied
from rivet_resources.contracts.parts import ChunkResult, Measures
from rivet_resources.errors import StateError, WindowBusy, WindowTaken
from rivet_resources.state import database, leases
from rivet_resources.state.database import Database, StateUnavailable
from rivet_resources.state.leases import export_lease
from rivet_resources.state.process import Process, is_alive, this_process
from rivet_resources.state.runs import RunRecord, export_metrics
from rivet_resources.state.store import State, default_url, open_state
from tests import processes

pytestmark = pytest.mark.xdist_group("processes")  # one worker starts one fork server

PROLOGUE = """
import sys
from datetime import UTC, datetime
from rivet_resources.errors import StateError, WindowBusy
from rivet_resources.contracts.parts import ChunkResult, Measures
from rivet_resources.state.runs import RunRecord
from rivet_resources.state.store import open_state
url, name = sys.argv[1:3]
state = open_state(url)
"""
HOLD = """
state.begin_run(RunRecord(name, "orders", "all", datetime.now(UTC)))
with state.lease("orders", "all", name):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty place in each of the two databases."""
    return default_url(tmp_path) if request.param == "sqlite" else request.getfixturevalue("fresh_database")


@pytest.fixture
def state(url: str) -> Iterator[State]:
    """The store as this process sees it."""
    state = open_state(url)
    yield state
    state.close()


def start(code: str, url: str, name: str) -> processes.Process:
    """Start another Python process that opened the store as `state`."""
    return processes.Process("-c", PROLOGUE + code, url, name)


@contextmanager
def holding(url: str, name: str) -> Iterator[processes.Process]:
    """Another process that runs `name` and holds the window `all` of `orders`."""
    child = start(HOLD, url, name)
    assert child.stdout.readline() == "held\n"
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def outputs(children: list[processes.Process]) -> list[str]:
    """What each process printed, once all have ended well."""
    said = [child.communicate(timeout=120)[0] for child in children]
    assert [child.returncode for child in children] == [0] * len(children)
    return said


def run(run_id: str) -> RunRecord:
    """A run of `orders` that starts now."""
    return RunRecord(run_id, "orders", "all", datetime.now(UTC))


def change_lease(url: str, **values: object) -> None:
    """Rewrite the lease rows, as another host or another time would have left them."""
    database = Database(url)
    with database.write() as connection:
        connection.execute(update(export_lease).values(**values))
    database.close()


# --- processes -----------------------------------------------------------------------------------


def test_process_is_alive_only_under_its_own_start_time():
    """A pid that was given to somebody else does not bring its first owner back."""
    me = this_process()

    assert is_alive(me)
    assert not is_alive(replace(me, start=me.start - 60))


def test_killed_process_is_dead_before_its_parent_looked():
    """A zombie holds nothing."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = Process(this_process().host, child.pid, this_process().start)
    import psutil

    process = replace(process, start=psutil.Process(child.pid).create_time())
    assert is_alive(process)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    assert not is_alive(process)
    child.communicate()
    assert not is_alive(process)


# --- leases --------------------------------------------------------------------------------------


def test_window_held_here_is_busy_and_free_afterwards(state: State):
    """One run at a time; the block's end gives the window back, whatever ended it."""
    with suppress(KeyError), state.lease("orders", "all", "r1") as lease:
        lease.check()
        with pytest.raises(WindowBusy, match=r"Window all of export orders is held by run r1 \(process \d+ on "):
            state.lease("orders", "all", "r2").__enter__()
        raise KeyError

    with state.lease("orders", "all", "r2"):
        assert [holder.run_id for holder in state.leases("orders")] == ["r2"]
    assert state.leases() == []


def test_other_windows_and_exports_are_not_busy(state: State):
    """A lease covers one window of one export."""
    with (
        state.lease("orders", "2026-01-01", "r1"),
        state.lease("orders", "2026-01-02", "r1"),
        state.lease("events", "2026-01-01", "r1"),
    ):
        assert len(state.leases()) == 3


def test_window_of_a_living_process_is_busy(url: str, state: State):
    """The refusal names run, host and process of the holder, and may be retried."""
    with holding(url, "r1") as child, pytest.raises(WindowBusy) as caught:
        state.lease("orders", "all", "r2").__enter__()

    assert f"run r1 (process {child.pid} on {this_process().host})" in str(caught.value)
    assert caught.value.retry


def test_window_of_a_killed_process_is_taken_over_at_once(url: str, state: State):
    """On the same host nobody waits for the expiry of a dead process's lease."""
    with holding(url, "r1") as child:
        child.send_signal(signal.SIGKILL)
        child.wait()

        with state.lease("orders", "all", "r2") as lease:
            lease.check()


def test_run_of_a_killed_process_becomes_interrupted_when_the_next_begins(url: str, state: State):
    """`running` is believed only of a process that can be seen; the next run of the export says so."""
    with holding(url, "r1") as child:
        assert state.live_runs("orders") == {"r1"}
        child.kill()
        child.wait()
    assert state.live_runs("orders") == set()
    state.note_sweep("orders", "/lake/orders", failures=0)
    state.begin_run(run("r2"))

    assert state.failures_to_sweep("orders", "/lake/orders") == 1
    assert {found.run_id: found.status for found in state.runs("orders")} == {"r1": "interrupted", "r2": "running"}
    assert state.live_runs("orders") == {"r2"}


def test_run_of_a_living_process_stays_running_when_another_begins(url: str, state: State):
    """Two windows of an export may run at once."""
    with holding(url, "r1"):
        state.begin_run(replace(run("r2"), window="2026-01-01"))

        assert state.live_runs("orders") == {"r1", "r2"}


def test_lease_of_another_host_is_busy_until_it_expires(url: str, state: State):
    """A process that cannot be looked at is believed for as long as its sign of life is young."""
    with holding(url, "r1") as child:
        child.kill()
        child.wait()
    change_lease(url, host="elsewhere")
    with pytest.raises(WindowBusy, match="on elsewhere"):
        state.lease("orders", "all", "r2").__enter__()
    change_lease(url, expires_at=datetime.now(UTC) - timedelta(seconds=1))

    with state.lease("orders", "all", "r2") as lease:
        lease.check()


@pytest.mark.parametrize("space", ["another boot:4:1", None], ids=["another", "of-before"])
def test_lease_of_another_process_table_is_busy_until_it_expires(url: str, state: State, space: str | None):
    """A host's name does not tell whose pid it is: containers share names, and each has its own processes."""
    with holding(url, "r1") as child:
        child.kill()
        child.wait()
    change_lease(url, process_space=space)
    with pytest.raises(WindowBusy):
        state.lease("orders", "all", "r2").__enter__()
    change_lease(url, expires_at=datetime.now(UTC) - timedelta(seconds=1))

    with state.lease("orders", "all", "r2") as lease:
        lease.check()


def test_lease_of_a_living_process_in_another_namespace_is_busy(url: str, state: State):
    """As in a container of the same host name: our process table has another process under its pid, or none."""
    apart = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("this machine gives us no process namespace of our own")
    command = [*apart, sys.executable, "-c", PROLOGUE + HOLD, url, "r1"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=processes.ROOT
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"

        with pytest.raises(WindowBusy):
            state.lease("orders", "all", "r2").__enter__()
        state.begin_run(replace(run("r2"), window="2026-01-01"))
        assert state.live_runs("orders") == {"r1", "r2"}
        child.communicate("")


def test_run_of_another_host_lives_as_long_as_its_lease(url: str, state: State):
    """Nobody sees a foreign process die: its lease speaks for it."""
    with state.lease("orders", "all", "r1"):
        state.begin_run(run("r1"))
        change_lease(url, host="elsewhere")
        database = Database(url)
        with database.write() as connection:
            connection.execute(update(export_metrics).values(host="elsewhere"))
        database.close()
        state.begin_run(run("r2"))
        assert state.live_runs("orders") == {"r1", "r2"}
        change_lease(url, expires_at=datetime.now(UTC) - timedelta(seconds=1))

        state.begin_run(run("r3"))
        assert state.live_runs("orders") == {"r2", "r3"}


def test_run_that_slept_through_its_expiry_learns_who_took_its_window(url: str, state: State):
    """A stopped process is taken over after the expiry; waking up, it may not publish."""
    with state.lease("orders", "all", "r1") as first:
        change_lease(url, expires_at=datetime.now(UTC) - timedelta(seconds=1))
        with state.lease("orders", "all", "r2") as second:
            with pytest.raises(WindowTaken, match="was taken from run r1 by run r2"):
                first.check()
            second.check()
        with pytest.raises(WindowTaken, match="another run, which has ended"):
            first.check()


def test_run_that_slept_but_was_not_missed_goes_on(url: str, state: State):
    """An expired lease that nobody took is still ours; the check renews it."""
    with state.lease("orders", "all", "r1") as lease:
        change_lease(url, expires_at=datetime.now(UTC) - timedelta(seconds=1))
        lease.check()

        with pytest.raises(WindowBusy):
            state.lease("orders", "all", "r2").__enter__()


def test_sign_of_life_is_given_while_the_block_lasts(url: str, state: State, monkeypatch: pytest.MonkeyPatch):
    """The thread pushes the expiry out, and stops when the window is lost."""
    monkeypatch.setattr(leases, "BEAT_SECONDS", 0.01)
    with state.lease("orders", "all", "r1"):
        change_lease(url, expires_at=datetime(2026, 1, 1, tzinfo=UTC))
        while not state.leases("orders"):  # until the thread has renewed it
            threading.Event().wait(0.01)
        (beat,) = (thread for thread in threading.enumerate() if thread.name == "lease-r1")
        change_lease(url, run_id="r2")
        beat.join(timeout=30)

        assert not beat.is_alive()


def test_of_two_processes_that_race_for_a_window_one_wins(url: str, state: State):
    """In each of 40 windows, of four processes at once exactly one takes the lease."""
    code = """
sys.stdin.readline()
held, kept = [], []
for number in range(40):
    lease = state.lease("orders", str(number), name)
    try:
        lease.__enter__()
        held.append(number)
        kept.append(lease)
    except WindowBusy:
        pass
print(held, flush=True)
sys.stdin.read()
"""
    children = [start(code, url, f"r{number}") for number in range(4)]
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    held = [json.loads(child.stdout.readline()) for child in children]
    for child in children:
        child.kill()
        child.communicate()

    assert sorted(number for numbers in held for number in numbers) == list(range(40))


# --- many writers --------------------------------------------------------------------------------


def test_eight_processes_write_at_once_and_nothing_is_lost(url: str):
    """Eight processes open one new store together, and every write of each is there afterwards."""
    code = """
for number in range(40):
    run_id = f"{name}-{number}"
    state.begin_run(RunRecord(run_id, name, "all", datetime.now(UTC)))
    state.advance_cursor(name, str(number), expected=str(number - 1) if number else None)
    state.save_chunk("shared", "all", "plan", name, ChunkResult(number, (), Measures(rows=number)), run_id)
    state.finish_run(run_id, "success", total_rows=number)
"""
    outputs([start(code, url, f"export{number}") for number in range(8)])

    state = open_state(url)
    assert [state.cursor(f"export{number}").value for number in range(8)] == ["39"] * 8
    assert len(state.finished_chunks("shared", "all", "plan")) == 8 * 40
    assert sum(found.total_rows for found in state.runs(last=1000)) == 8 * sum(range(40))
    state.close()


def test_of_eight_processes_that_move_one_cursor_each_step_is_won_once(url: str, state: State):
    """Compare-and-set: a counter that eight processes push up by one never skips and never repeats."""
    code = """
won = 0
while True:
    cursor = state.cursor("orders")
    at = int(cursor.value) if cursor and cursor.value else 0
    if at >= 80:
        break
    try:
        state.advance_cursor("orders", f"{at + 1}", expected=cursor.value if cursor else None)
        won += 1
    except StateError:
        pass
print(won)
"""
    said = outputs([start(code, url, f"r{number}") for number in range(8)])

    # An advance to where another process has just moved is no error (a repeat is not), so wins may be shared.
    assert state.cursor("orders").value == "80"
    assert sum(map(int, said)) >= 80


def test_threads_share_one_state(state: State):
    """Sixteen threads on one object: more than it has connections."""

    def work(number: int) -> None:
        state.begin_run(replace(run(f"r{number}"), export=f"export{number}"))
        with state.lease(f"export{number}", "all", f"r{number}") as lease:
            state.save_chunk("shared", "all", "plan", "r", ChunkResult(number, (), Measures()), str(number))
            lease.check()
        state.finish_run(f"r{number}", "success")

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(48)))

    assert len(state.runs(last=100)) == len(state.finished_chunks("shared", "all", "plan")) == 48
    assert state.leases() == []


def test_forked_child_uses_the_state_it_inherited(state: State):
    """A fork gets connections of its own; the parent's go on working."""
    state.advance_cursor("orders", "parent", expected=None)
    child = os.fork()
    if child == 0:  # no pytest in here: the exit code is the answer
        try:
            state.advance_cursor("orders", "child", expected="parent")
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    assert state.cursor("orders").value == "child"
    state.advance_cursor("orders", "parent again", expected="child")


def test_process_killed_in_a_write_leaves_the_store_whole(url: str, state: State):
    """A transaction that was not committed never was, and its lock dies with its process."""
    code = """
with state._database.write() as connection:
    from rivet_resources.state import cursors
    cursors.advance(connection, "orders", "half", expected=None)
    print("written", flush=True)
    sys.stdin.read()
"""
    child = start(code, url, "r1")
    assert child.stdout.readline() == "written\n"
    child.kill()
    child.communicate()

    state.advance_cursor("orders", "10", expected=None)
    assert state.cursor("orders").value == "10"


def test_store_deleted_under_a_run_is_an_error_not_a_silence(tmp_path: Path):
    """A cursor written to a file that nobody can find again must not look committed."""
    state = open_state(default_url(tmp_path))
    for file in tmp_path.iterdir():
        file.unlink()

    with pytest.raises(StateError, match="was removed or replaced"):
        state.advance_cursor("orders", "10", expected=None)
    successor = open_state(default_url(tmp_path))
    with pytest.raises(StateError, match="was removed or replaced"):
        state.cursor("orders")
    state.close()
    successor.close()


# --- a store that is away ------------------------------------------------------------------------


@pytest.fixture
def away(fresh_database: str) -> Iterator[tuple[Proxy, State]]:
    """A store on a server, behind a proxy that can take it away."""
    with proxied(fresh_database) as (proxy, url):
        state = open_state(url)
        yield proxy, state
        state.close()


def test_run_outlives_a_store_that_is_away_for_a_while(away: tuple[Proxy, State]):
    """For less than a lease lasts: the run goes on when the server is back, and the window is still its own."""
    proxy, state = away
    state.begin_run(run("r1"))
    with state.lease("orders", "all", "r1") as lease:
        proxy.down()
        back = threading.Timer(2, proxy.up)
        back.start()
        lease.check()
        back.join()
        proxy.reset()  # amid a transaction is nearly never; between two always
        state.advance_cursor("orders", "7", expected=None)
        state.finish_run("r1", "success")

    assert ("success", "7", []) == (state.run("r1").status, state.cursor("orders").value, state.leases())


def test_server_that_ends_amid_a_transaction_is_asked_again(away: tuple[Proxy, State], monkeypatch: pytest.MonkeyPatch):
    """What may be repeated is."""
    proxy, state = away
    proxy.reset_at = b"UPDATE export_metrics"
    state.begin_run(run("r1"))
    state.finish_run("r1", "success")

    assert ("success", b"") == (state.run("r1").status, proxy.reset_at)


def test_store_that_stays_away_is_given_up_once(away: tuple[Proxy, State], monkeypatch: pytest.MonkeyPatch):
    """The patience is one for all that waits: a run does not wait again at each of its last steps."""
    monkeypatch.setattr(database, "PATIENCE_SECONDS", 1.0)
    proxy, state = away
    state.begin_run(run("r1"))
    proxy.down()
    with pytest.raises(StateUnavailable):
        state.finish_run("r1", "success")
    began = time.monotonic()
    for _ in range(20):
        with pytest.raises(StateUnavailable):
            state.finish_run("r1", "success")

    assert time.monotonic() - began < 10
