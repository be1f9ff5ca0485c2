"""Which exports of a plan run side by side: turns in, and who may start now out; and the threads that do it.

Belongs here: waves, limits by cost, pools, exports that want to be alone. Not here: what a turn does
(`launch/apply_plan.py`).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from rivet_assets.plan.priority import ABREAST, Cost


@dataclass(frozen=True)
class Turn:
    """One export that waits to run."""

    name: str
    wave: int
    cost: Cost
    seconds: float  # how long it usually takes
    parallel_safe: bool = True
    source_group: str | None = None


def order(turns: Sequence[Turn], *, pool: int | None = None) -> list[Turn]:
    """Sort by wave, the longest first; in a pool waves do not count."""
    return sorted(turns, key=lambda turn: (0 if pool else turn.wave, -turn.seconds, turn.name))


def startable(waiting: Sequence[Turn], running: Collection[Turn], *, pool: int | None = None) -> Turn | None:
    """Choose who may start now, beside those that run; None: nobody, until one of them has ended.

    Without a pool a wave begins when the one before has ended, and the dearest of those that run side by side decides
    how many they may be. With one, it alone decides.
    """
    if any(not turn.parallel_safe for turn in running):
        return None
    wave = min((turn.wave for turn in (*waiting, *running)), default=0)
    groups = {turn.source_group for turn in running} - {None}
    for turn in order(waiting, pool=pool):
        together = (*running, turn)
        most = pool or min(ABREAST[each.cost] for each in together)
        is_its_time = pool is not None or turn.wave == wave
        fits = len(together) <= most and (turn.parallel_safe or not running) and turn.source_group not in groups
        if is_its_time and fits:
            return turn
    return None


def run_turns(turns: Sequence[Turn], work: Callable[[Turn], None], *, pool: int | None = None) -> None:
    """Do the work of every turn once, side by side as far as they may; an error is raised once all others have ended.

    A single turn, or a pool of one, stays in the calling thread.
    """
    # Threads, because Dagster's in-process runs are made side by side in one process and share its Spark session;
    # measured 2026-11 with six runs of one Dagster version. Daemon threads, because only the main thread hears a
    # Ctrl-C: it leaves them behind as a kill would, which every export survives.
    if len(turns) == 1 or pool == 1:
        for turn in order(turns, pool=pool):
            work(turn)
        return
    waiting, running = list(turns), set[Turn]()
    ended: queue.Queue[tuple[Turn, BaseException | None]] = queue.Queue()
    failure: BaseException | None = None

    def do(turn: Turn) -> None:
        try:
            work(turn)
        except BaseException as error:
            ended.put((turn, error))
        else:
            ended.put((turn, None))

    while waiting or running:
        while failure is None and (chosen := startable(waiting, running, pool=pool)) is not None:
            waiting.remove(chosen)
            running.add(chosen)
            threading.Thread(target=do, args=(chosen,), name=f"rivet-apply-{chosen.name}", daemon=True).start()
        if not running:
            break
        done, error = ended.get()
        running.remove(done)
        failure = failure or error
    if failure is not None:
        raise failure
