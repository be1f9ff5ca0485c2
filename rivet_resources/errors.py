"""Everything Rivet raises on purpose: one root, one class per thing a user can do about it.

A message says what is wrong with which value, where; what is allowed; what to do. It never holds a
row value, a URL or a secret. `code` is stable and documented; `exit_code` is the process's answer.
Errors of one engine, destination or format that nobody else raises may live beside it, as subclasses.
"""

from collections.abc import Sequence
from typing import ClassVar

# The worst exit code of several exports: the first of these that is present (`contract.md`, section 14).
WORST_FIRST = (3, 4, 1, 2)


class RivetError(Exception):
    """Root of everything Rivet raises on purpose.

    `retry` answers one question for the orchestrator: can the same call,
    unchanged, succeed later? `exit_code`: 1 config, usage or unclassified;
    2 transient; 3 data integrity; 4 drift refused (`contract.md`, section 14).
    """

    code: ClassVar[str] = "RIVET_ERROR"
    retry: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1


class Fault(RivetError):
    """One fault in a configuration file; `ConfigError` carries all of them."""

    code = "RIVET_CONFIG_INVALID"


class ConfigError(RivetError):
    """The configuration cannot be used; the message holds one line per fault, `file:line: what`."""

    code = "RIVET_CONFIG_INVALID"

    def __init__(self, message: str, *, codes: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.codes = tuple(codes)


class SecretUnreadable(ConfigError):
    """A secret of `secrets:` is not in its store, has no such field, or may not be read."""

    code = "RIVET_SECRET_UNREADABLE"


class SecretStoreUnreachable(RivetError):
    """A store of secrets does not answer at the moment."""

    code = "RIVET_SECRET_STORE_UNREACHABLE"
    retry = True
    exit_code = 2


# --- sources -------------------------------------------------------------------------------------


class SourceError(RivetError):
    """The source refused a statement, and would refuse it again."""

    code = "RIVET_SOURCE_REFUSED"


class SourceLost(SourceError):
    """The line to the source broke, or the source asks to come back later; a new connection may succeed."""

    code = "RIVET_SOURCE_LOST"
    retry = True
    exit_code = 2

    def __init__(self, message: str, *, extra_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.extra_seconds = extra_seconds  # on top of the backoff, by error class (`contract.md`, section 6)


class SourceUnreachable(SourceLost):
    """No connection could be made: the server is away for a while, or the address is wrong; nobody can tell which."""

    code = "RIVET_SOURCE_UNREACHABLE"


class SourceMissing(SourceError):
    """There is no such database at the source, or no such file."""

    code = "RIVET_SOURCE_MISSING"


class SourceTls(SourceError):
    """The line to the source cannot be protected as asked: its certificate, its TLS, or the authority's file."""

    code = "RIVET_SOURCE_TLS"


class SourceAuth(SourceError):
    """The source does not accept the user or the password."""

    code = "RIVET_SOURCE_AUTH"


class SourcePermission(SourceError):
    """The user may not read the object; the message names the GRANT."""

    code = "RIVET_SOURCE_PERMISSION"


class StatementTimeout(SourceError):
    """One page ran into `statement_timeout_s`, and what was tried instead did too."""

    code = "RIVET_SOURCE_STATEMENT_TIMEOUT"


class SnapshotLost(SourceError):
    """The shared snapshot ended before the last page; going on would mix two instants."""

    code = "RIVET_SOURCE_SNAPSHOT_LOST"
    retry = True
    exit_code = 2


class UnknownTable(SourceError):
    """The export names a table that the source does not show to this user."""

    code = "RIVET_SOURCE_UNKNOWN_TABLE"


class UnknownColumn(SourceError):
    """The export names a column that its relation does not have."""

    code = "RIVET_SOURCE_UNKNOWN_COLUMN"

    def __init__(self, column: str, *, relation: str, known: Sequence[str], key: str) -> None:
        super().__init__(f"{relation} has no column {column!r}; it has {', '.join(known)}. Fix `{key}` of the export.")


class UnsupportedColumn(SourceError):
    """A column has a type without any lossless form here, or `on_unsupported: fail` refuses its text form."""

    code = "RIVET_SOURCE_UNSUPPORTED_COLUMN"


class SourceChanged(SourceError):
    """The relation was dropped or altered while it was read."""

    code = "RIVET_SOURCE_CHANGED"


class BoundsUnusable(SourceError):
    """What a manifest says of its rows does not fit the table: it was edited, or a column was altered."""

    code = "RIVET_MANIFEST_BOUNDS"
    exit_code = 3


class EndsUnknown(SourceError):
    """Several windows have rows of one cursor value, and nothing says which: none of them can be read by itself."""

    code = "RIVET_WINDOW_ENDS"
    exit_code = 3


class ReadWindowClosed(RivetError):
    """The source may not be read at this time of the day; not tried again before `not_before`, unix seconds."""

    code = "RIVET_READ_WINDOW_CLOSED"
    exit_code = 2

    def __init__(self, message: str, *, not_before: float) -> None:
        super().__init__(message)
        self.not_before = not_before


class BudgetReached(RivetError):
    """So much was read of the source as its month allows; not tried again before `not_before`, unix seconds."""

    code = "RIVET_BUDGET_REACHED"
    exit_code = 2

    def __init__(self, message: str, *, not_before: float) -> None:
        super().__init__(message)
        self.not_before = not_before


# --- change logs ---------------------------------------------------------------------------------


class LogSetup(SourceError):
    """The source is not set up for change capture; the message names the setting or the GRANT."""

    code = "RIVET_LOG_SETUP"


class LogBusy(SourceError):
    """Another reader has the slot, the server id or the capture's lock; ours leaves it alone."""

    code = "RIVET_LOG_BUSY"
    exit_code = 2


class LogRefused(SourceError):
    """The log holds an event that cannot be read without losing data; nothing behind it is acknowledged."""

    code = "RIVET_LOG_REFUSED"
    exit_code = 3


class PositionLost(SourceError):
    """The source no longer has the log behind our position: changes are gone, only a new snapshot helps."""

    code = "RIVET_LOG_POSITION_LOST"


class CheckpointUnusable(RivetError):
    """A checkpoint is missing where one is needed, damaged, of another source, or older than what is stored."""

    code = "RIVET_CHECKPOINT_UNUSABLE"


# --- values, parts, windows ----------------------------------------------------------------------


class ValueDoesNotFit(RivetError):
    """A value cannot be held by the type of its column, and the policy is `fail`."""

    code = "RIVET_VALUE_DOES_NOT_FIT"
    exit_code = 3


class PartCorrupt(RivetError):
    """A part read back differs from what was written: rows, footer, size or checksum."""

    code = "RIVET_VERIFY_PART"
    exit_code = 3


class GateRefused(RivetError):
    """A quality rule stopped the window; nothing was published and the cursor is where it was."""

    code = "RIVET_QUALITY_REFUSED"
    exit_code = 3


class ContractBroken(GateRefused):
    """The columns are not those of the contract; no row was read. `verdicts` are what was judged."""

    code = "RIVET_CONTRACT_BROKEN"

    def __init__(self, message: str, *, verdicts: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.verdicts = verdicts


class OtherValues(RivetError):
    """Rows have a value that no partition of the export is for; nothing was published."""

    code = "RIVET_OTHER_VALUES"
    exit_code = 3


class SnapshotPast(RivetError):
    """A snapshot of a day is asked for on another day: the rows of that day are not there any more, or not yet."""

    code = "RIVET_SNAPSHOT_PAST"


class DriftRefused(RivetError):
    """The schema differs from the last run's, and the policy is `fail`."""

    code = "RIVET_DRIFT_REFUSED"
    exit_code = 4


class WindowTaken(RivetError):
    """Another run committed this window since ours was planned; ours publishes nothing."""

    # Not retried by itself: the window is there, fresh, and reading it again would only load the source.
    code = "RIVET_WINDOW_TAKEN"
    exit_code = 2


class WindowBusy(RivetError):
    """Another run holds the lease on this window right now."""

    code = "RIVET_WINDOW_BUSY"
    retry = True
    exit_code = 2


class WindowConflict(RivetError):
    """The export's folder holds windows that this one would neither replace nor follow: rows would show twice."""

    code = "RIVET_WINDOW_CONFLICT"


class ProvenanceRefused(RivetError):
    """What is remembered, or lies at the destination, is of another database, table or place than this run's."""

    code = "RIVET_PROVENANCE_REFUSED"


class KeyShared(RivetError):
    """Two rows of a table have one `key:` at the same moment, so a mirror or history would lose one of them."""

    code = "RIVET_KEY_SHARED"


class ManifestUnreadable(RivetError):
    """A manifest is missing where one is needed, damaged, or written by a newer Rivet."""

    code = "RIVET_MANIFEST_UNREADABLE"


# --- destinations, state, the machine ------------------------------------------------------------


class DestinationError(RivetError):
    """The destination refused, and would refuse again."""

    code = "RIVET_DESTINATION_REFUSED"


class DestinationUnreachable(DestinationError):
    """The destination did not answer; it may later."""

    code = "RIVET_DESTINATION_UNREACHABLE"
    retry = True
    exit_code = 2


class DestinationAuth(DestinationError):
    """Credentials are missing, wrong, or may not write there."""

    code = "RIVET_DESTINATION_AUTH"


class DestinationPermission(DestinationAuth):
    """Whoever signed in is known, and may not write there; the message names the right."""

    code = "RIVET_DESTINATION_PERMISSION"


class DestinationTls(DestinationError):
    """The line to the destination cannot be protected: its certificate or its authority is not accepted."""

    code = "RIVET_DESTINATION_TLS"


class BucketMissing(DestinationError):
    """The bucket does not exist; Rivet never creates one."""

    code = "RIVET_DESTINATION_BUCKET_MISSING"


class DiskFull(DestinationError):
    """No space is left where parts are written."""

    code = "RIVET_DESTINATION_FULL"
    retry = True
    exit_code = 2


class StateError(RivetError):
    """The state store cannot be opened, is newer than this program, or refused a compare-and-set."""

    code = "RIVET_STATE_ERROR"


class ExtraMissing(RivetError):
    """A package that only some need is not installed; the message names the extra that brings it."""

    code = "RIVET_EXTRA_MISSING"


class WorkerUnfit(RivetError):
    """A host of the Spark cluster cannot do the work: no Python, package, variable, or way to an end of the export."""

    code = "RIVET_SPARK_WORKER_UNFIT"


class WorkerCutOff(WorkerUnfit):
    """Hosts of the Spark cluster cannot reach an end of the export at the moment."""

    code = "RIVET_SPARK_WORKER_CUT_OFF"
    retry = True
    exit_code = 2


class SparkEnded(RivetError):
    """The cluster ended Spark's application while it worked: it lost the host of its master, or all its executors."""

    code = "RIVET_SPARK_ENDED"
    retry = True
    exit_code = 2


class SparkKilled(SparkEnded):
    """Somebody ended Spark's application on the cluster; it is not started again."""

    code = "RIVET_SPARK_KILLED"
    retry = False


class SparkUnavailable(RivetError):
    """No JVM could be started or reached; the message says what was tried and how to go on without."""

    code = "RIVET_SPARK_UNAVAILABLE"
