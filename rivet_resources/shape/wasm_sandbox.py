"""Somebody's WebAssembly module, called with bytes and nothing else: no file, no network, no clock, no other memory.

Belongs here: compiling, limits, one call, and what a module did that ended it. Not here: rows and schemas
(`transforms/wasm.py`), what is asked of a module's output (`wasm_output.py`).

The binary interface, version 1 (docs/guides/plugins.md). A module imports nothing and exports

    memory
    rivet_abi() -> i32                        1
    rivet_alloc(length: i32) -> i32           where the host may write so many bytes
    rivet_plan(at: i32, length: i32) -> i64   a schema to a schema
    rivet_transform(at: i32, length: i32) -> i64   a batch to a batch
    rivet_init(at: i32, length: i32) -> i32   optional: `config:` as JSON; 0 is well

The i64 is the place of the answer in its high half and its length in the low one; a place of 0 is a refusal, and the
low half the module's own number of it.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rivet_resources.extras import WASM

ABI = 1
MOST_MODULE = 64 * 1024 * 1024
# Elements; a table of functions of a large Rust module has some thousand.
MOST_TABLE = 100_000
STACK_BYTES = 512 * 1024
WORD = 0xFFFF_FFFF
# Name → types of arguments and of results.
FUNCTIONS = {
    "rivet_abi": ((), ("i32",)),
    "rivet_alloc": (("i32",), ("i32",)),
    "rivet_plan": (("i32", "i32"), ("i64",)),
    "rivet_transform": (("i32", "i32"), ("i64",)),
    "rivet_init": (("i32", "i32"), ("i32",)),
}
OPTIONAL = ("rivet_init",)

_own = threading.local()  # one engine per thread: its epoch ends the calls of this thread alone
atexit.register(_own.__dict__.clear)  # of the main thread; later, wasmtime finds itself half gone and says so on stderr


class ModuleRefused(Exception):
    """A module is none, or none of this interface; the message says what it lacks, and ends without a full stop."""


class CallEnded(Exception):
    """A call came to no answer. `is_of_data`: other rows may fare better, so the rows may be to blame."""

    def __init__(self, why: str, *, is_of_data: bool) -> None:
        super().__init__(why)
        self.is_of_data = is_of_data


@dataclass(frozen=True)
class Limits:
    """What one call may take."""

    memory_bytes: int
    seconds: float


def check(code: bytes) -> None:
    """Refuse what is no module of this interface.

    Raises:
        ExtraMissing: wasmtime is not installed.
        ModuleRefused
    """
    _compiled(code)


def call(code: bytes, function: str, data: bytes, *, config: bytes, limits: Limits) -> bytes:
    """Call a function of a new instance, and return its answer.

    Raises:
        ExtraMissing: wasmtime is not installed.
        ModuleRefused
        CallEnded: it refused, trapped, took too long or too much, or answered with a place outside its memory.
    """
    import wasmtime  # driver

    engine, module = _loaded(code)
    store = wasmtime.Store(engine)
    store.set_limits(memory_size=limits.memory_bytes, table_elements=MOST_TABLE, instances=1, tables=8, memories=1)
    # One tick from now: the timer below makes that tick. Fuel would count each instruction instead, and cost that much.
    store.set_epoch_deadline(1)
    try:
        with _ends_after(limits.seconds, engine):
            # An empty list of imports is the sandbox: there is nothing that the module could call.
            # Each call gets an instance of its own: what a module remembers of one page cannot reach the next one, so
            # rows come out alike however they are cut into pages.
            exports: Any = wasmtime.Instance(store, module, []).exports(store)
            if (version := exports["rivet_abi"](store)) != ABI:
                raise ModuleRefused(f"is of interface version {version}; this Rivet has {ABI}")
            if config:
                _configure(store, exports, config)
            return _answer(store, exports, function, data)
    except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
        ended = _reason(error, limits)
    finally:
        # Else 64 MB and more wait for the garbage collector.
        store.close()
    raise ended


def _configure(store: Any, exports: Any, config: bytes) -> None:
    if "rivet_init" not in exports:
        raise CallEnded("has no `rivet_init` and takes no `config`; leave `config` out", is_of_data=False)
    code = exports["rivet_init"](store, _put(store, exports, config), len(config))
    if code:
        raise CallEnded(f"refused its `config` with its code {code}", is_of_data=False)


def _answer(store: Any, exports: Any, function: str, data: bytes) -> bytes:
    answer = exports[function](store, _put(store, exports, data), len(data))
    at, length = answer >> 32 & WORD, answer & WORD
    if at == 0:
        raise CallEnded(f"refused with its code {length}", is_of_data=True)
    memory = exports["memory"]
    # The module's own numbers: reading outside its memory would show it, or the rows' reader, the host's.
    if at + length > memory.data_len(store):
        raise CallEnded("answered with a place outside its memory", is_of_data=False)
    return bytes(memory.read(store, at, at + length))


def _put(store: Any, exports: Any, data: bytes) -> int:
    """Write bytes where the module wants them."""
    at = int(exports["rivet_alloc"](store, len(data))) & WORD
    memory = exports["memory"]
    if at == 0:
        raise CallEnded(f"has no memory for the {len(data)} bytes of a call; raise `memory`", is_of_data=False)
    if at + len(data) > memory.data_len(store):
        raise CallEnded("wants its input outside its memory", is_of_data=False)
    memory.write(store, data, at)
    return at


@contextmanager
def _ends_after(seconds: float, engine: Any) -> Iterator[None]:
    """End what runs in an engine once the time is over: wasmtime looks at the epoch at every loop and function."""
    timer = threading.Timer(seconds, engine.increment_epoch)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        # A tick that comes later would end the next call.
        timer.join()


def _reason(error: Exception, limits: Limits) -> CallEnded:
    """Return why a call ended; wasmtime's own text holds addresses, and is of no use to people."""
    import wasmtime  # driver

    code = error.trap_code if isinstance(error, wasmtime.Trap) else None
    if code == wasmtime.TrapCode.INTERRUPT:
        # Halving a page for the row at fault would take this long again and again.
        return CallEnded(f"took more than {limits.seconds:.15g} s; raise `seconds`", is_of_data=False)
    if code is not None:
        told = code.name.lower().replace("_", " ")
        memory = f"{limits.memory_bytes // 1024**2} MB"
        return CallEnded(f"broke off ({told}); it may have wanted more than its `memory` of {memory}", is_of_data=True)
    return CallEnded("could not be started within its limits; raise `memory`", is_of_data=False)


def _loaded(code: bytes) -> tuple[Any, Any]:
    """Return this thread's engine, and the module in it."""
    import wasmtime  # driver

    if not hasattr(_own, "engine"):
        _own.engine, _own.modules = _engine(), {}
    if code not in _own.modules:
        _own.modules.clear()  # an export has one or two
        # Compiled once per process, loaded once per thread: an engine's epoch is shared by all that run in it.
        _own.modules[code] = wasmtime.Module.deserialize(_own.engine, _compiled(code))
    return _own.engine, _own.modules[code]


def _engine() -> Any:
    """Make an engine whose calls end by its epoch, and whose numbers are those of any machine."""
    WASM.require()
    import wasmtime  # driver

    config = wasmtime.Config()
    config.epoch_interruption = True
    config.max_wasm_stack = STACK_BYTES
    # A NaN's bits differ by processor, and a row's hash with them.
    config.cranelift_nan_canonicalization = True
    config.wasm_relaxed_simd_deterministic = True
    config.wasm_threads = False
    # Its threads would outlive a fork of Spark's daemon.
    config.parallel_compilation = False
    return wasmtime.Engine(config)


@lru_cache(maxsize=8)
def _compiled(code: bytes) -> bytes:
    """Compile a module, once per process, and see that it is one of ours; the machine's code of it."""
    engine = _engine()
    import wasmtime  # driver

    if len(code) > MOST_MODULE:
        raise ModuleRefused(f"is larger than {MOST_MODULE // 1024**2} MB")
    try:
        module = wasmtime.Module(engine, code)
    except wasmtime.WasmtimeError as error:
        first = (str(error).splitlines() or [""])[0][:200]
        raise ModuleRefused(f"is no WebAssembly module: {first}") from None
    _check_interface(module)
    return bytes(module.serialize())


def _check_interface(module: Any) -> None:
    """Compare what a module wants and offers with the interface.

    Raises:
        ModuleRefused
    """
    if wanted := sorted({f"{each.module}.{each.name}" for each in module.imports}):
        raise ModuleRefused(
            f"wants {', '.join(wanted[:5])} of its host; a step gets nothing but its rows. Build it for "
            f"wasm32-unknown-unknown, without WASI"
        )
    offered = {each.name: each.type for each in module.exports}
    missing = [name for name in ("memory", *FUNCTIONS) if name not in offered and name not in OPTIONAL]
    if missing:
        raise ModuleRefused(f"lacks {', '.join(missing)}, of Rivet's interface version {ABI}")
    for name, (takes, returns) in FUNCTIONS.items():
        kind = offered.get(name)
        if kind is not None and _signature(kind) != (takes, returns):
            raise ModuleRefused(f"has a {name} that is not ({', '.join(takes)}) -> {returns[0]}")


def _signature(kind: Any) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return the types that a function takes and returns; None for what is no function."""
    if not hasattr(kind, "params"):
        return None
    return tuple(map(str, kind.params)), tuple(map(str, kind.results))
