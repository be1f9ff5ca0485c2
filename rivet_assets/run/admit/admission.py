"""Whether a run may work on what it finds: its state and its destination must be of the database that it reads.

Belongs here: asking once per run, before the first row is read and before anything is removed; the words of a refusal;
taking over on purpose (`--adopt`). Not here: what tells two databases apart
(`rivet_resources/state/provenances.py`), the checkpoints of change logs, which know their source themselves
(`drain/checkpoint_book.py`).

Two files may mean two things by one name, and one address may lead to another database than yesterday. A cursor of one
skips rows of the other; a commit of one removes the parts of the other. Both would end with `success`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from rivet_assets.modes.by_shard import COLUMN, kept_as, same_address, shard_window
from rivet_assets.run.admit.adoption_evidence import evidence_at, evidence_in
from rivet_resources.commit.listing import last_paths
from rivet_resources.commit.manifest import Manifest, manifest_paths, read_manifest
from rivet_resources.commit.publish import sweep_if_due
from rivet_resources.commit.supersede import BESIDE_IN_PATHS
from rivet_resources.contracts.extract import Window
from rivet_resources.contracts.provenance import DatabaseIdentity, Provenance
from rivet_resources.errors import ProvenanceRefused
from rivet_resources.state.provenances import difference, is_any, is_same
from rivet_resources.state.schemas import Columns

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_resources.contracts.destination import ReadableRoot, Root
    from rivet_resources.contracts.relation import Relation
    from rivet_resources.contracts.source import Session, Source
    from rivet_resources.state.provenances import KnownProvenance
    from rivet_resources.state.store import State

# Run tag: "true" is what `rivet run --adopt` sets.
ADOPT = "rivet/adopt"
POSITION = "its position in the change log"


class Claim(Protocol):
    """An export and what it would work on: a run's site, or what a check of it knows."""

    @property
    def export(self) -> Export: ...
    @property
    def state(self) -> State: ...
    @property
    def root(self) -> Root: ...
    @property
    def shard(self) -> str: ...  # '' of an export without shards
    # The destination as configured; '' where nobody asks.
    @property
    def place(self) -> str: ...


class RunClaim(Claim, Protocol):
    """The claim of a run that begins: it asks the source, and has a log."""

    @property
    def source(self) -> Source: ...
    @property
    def source_name(self) -> str: ...
    @property
    def tell(self) -> Callable[[str], None]: ...  # one line for the log of the run


@dataclass
class Admission:
    """Asks once per run of an export, whichever of its windows comes first; threads may share it."""

    is_adopting: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _found: dict[str, Provenance] = field(default_factory=dict)  # by shard
    _columns: Columns | None = None

    def of(
        self,
        site: RunClaim,
        session: Session,
        relation: Relation,
        *,
        seen: ReadableRoot | None = None,
        window: Window | None = None,
    ) -> Provenance:
        """Return whose rows the run reads, once it may; then remove what dead runs of the export left.

        Args:
            seen: the destination as this window knows it; None: as it is.
            window: of time, that the run begins with; or the last one of the chain that it continues; None: neither is
                known.

        Raises:
            ProvenanceRefused: state or destination are of another database, table or place.
        """
        # Windows are staged several at once, and the first to come asks for all: two that admitted together could each
        # sweep what the other has just staged.
        with self._lock:
            if site.shard not in self._found:
                found = read_provenance(site.source, site.source_name, session, relation)
                self._admit(site, found, standing_manifest(site, seen=seen, window=window))
                # Only now: before it is admitted, what lies there may be another database's. Once, for all shards.
                is_swept = bool(self._found) and not site.export.of_shard
                removed = 0 if is_swept else sweep_if_due(site.root, export=site.export.name, state=site.state)
                if removed:
                    site.tell(f"{site.export.name}: removed {removed} leftovers of dead runs.")
                self._found[site.shard] = found
            return self._found[site.shard]

    def first_columns(self, columns: Columns) -> Columns:
        """Return the columns that the first window of this run had, which are these if none was before."""
        with self._lock:
            self._columns = self._columns or columns
            return self._columns

    def _admit(self, site: RunClaim, found: Provenance, standing: Manifest | None) -> None:
        name, state = site.export.name, site.state
        if self.is_adopting:
            # Before the memory is read: what lies under the bare name may be what has to be adopted.
            state.adoptions().take_all(name)
        kept = kept_as(site.export, site.shard)
        known = state.provenance(kept)
        if self.is_adopting:
            adopt(kept, found, known, standing, destination=site.place, state=state, tell=site.tell)
            # Of shards the other one is named as well: else the next run of that one would refuse what was accepted
            # here.
            if twins := list(_twins(site, found, known, self._found).values()):
                state.remember(kept, found, destination=site.place, accepted=twins)
            return
        refuse(site, found, known, standing)
        if site.shard:
            refuse_same_database(site, found, known, self._found)
        if known.provenance is None and standing is not None and standing.source.name is None:
            site.tell(
                f"{name}: an earlier Rivet wrote what is at {site.root.uri}, and not of which database it is; "
                f"from now on it counts as of {found}."
            )


def read_provenance(source: Source, source_name: str, session: Session, relation: Relation) -> Provenance:
    """Ask the database who it is, and join that with what is read of it."""
    return provenance_in(source, source_name, session.identity(), relation)


def provenance_in(source: Source, source_name: str, identity: DatabaseIdentity, relation: Relation) -> Provenance:
    """Join who a database says it is with what is read of it."""
    table = ".".join(source.lineage_name(relation.sql)) if relation.is_table else ""
    return Provenance(source.type, source_name, identity.servers, identity.database, table)


def standing_manifest(
    site: Claim, *, seen: ReadableRoot | None = None, window: Window | None = None
) -> Manifest | None:
    """Read a manifest whose rows are of the database that a run would read, if all is well; None: there is none."""
    root = seen or site.root
    is_among_others = bool(site.shard) and not site.export.of_shard
    return manifest_of_shard(root, site.shard) if is_among_others else any_manifest(root, near=window)


def manifest_of_shard(root: ReadableRoot, shard: str) -> Manifest | None:
    """Read a manifest of one shard, of times the last; None when nothing of it is committed."""
    if not root.keeps_manifests:
        return None
    # The window's own, or the end of those of its times.
    name = shard_window(shard).file_name
    paths = [path for path in manifest_paths(root) if path.endswith((f"/{name}", f"{BESIDE_IN_PATHS}{name}"))]
    found = next(filter(None, (read_manifest(root, path) for path in reversed(paths))), None)
    return found[0] if found else None


def any_manifest(root: ReadableRoot, *, near: Window | None = None) -> Manifest | None:
    """Read one manifest of a place, since all there are of one database but for what was taken over on purpose.

    Of windows of time the last is looked at; None when nothing is committed there.

    Args:
        near: a window of time that is about to be committed, or the last one of a chain.
    """
    paths = last_paths(root, now=datetime.now(UTC), near=near) if root.keeps_manifests else ()
    # From the end: the newest is the likeliest to stay until it is read.
    for path in reversed(paths):
        if found := read_manifest(root, path):
            return found[0]
    return None


def last_of_chain(state: State, name: str) -> Window | None:
    """Return the window of a chain that was committed last, as far as the store knows; None: it knows none.

    Whether it is there, and where it ends, its manifest says.
    """
    newest = [Window(each.window) for each in state.files(name, last=1)]
    return next((each for each in newest if each.kind == "after"), None)


def adopt(
    name: str, found: Provenance, known: KnownProvenance, standing: Manifest | None,
    *, destination: str, state: State, tell: Callable[[str], None],
) -> None:  # fmt: skip
    """Take over what is there, whatever it is of; from now on it counts as this database's."""
    met = [known.provenance, standing.source.provenance if standing else None]
    others = [each for each in met if each is not None and difference(each, found)]
    state.remember(name, found, destination=destination, accepted=others)
    for other in others:
        tell(f"{name}: what is known of {other} is taken over as of {found}, as asked for.")


def refuse(site: Claim, found: Provenance, known: KnownProvenance, standing: Manifest | None) -> None:
    """Refuse state or a destination of another database, and a cursor without the rows before it.

    Raises:
        ProvenanceRefused
    """
    name, state = site.export.name, site.state
    # The state first: it says what was read last, whatever has become of the destination.
    if known.provenance is not None and (what := difference(known.provenance, found)):
        raise ProvenanceRefused(of_state(name, state.name, what, known.provenance, found))
    refuse_destination(name, found, known, standing, root=site.root)
    if site.export.answers.keeps_cursor:
        refuse_moved(site, known)


def refuse_same_database(site: Claim, found: Provenance, known: KnownProvenance, met: Mapping[str, Provenance]) -> None:
    """Refuse a shard whose rows another shard has: they would be read, and published, twice.

    Args:
        met: of the shards that this run has asked already.

    Raises:
        ProvenanceRefused
    """
    whole, shard = site.export.whole, site.shard
    name = whole.name
    other = same_address(site.export, shard) or next(iter(_twins(site, found, known, met)), "")
    if other:
        raise ProvenanceRefused(
            f"Export {name}: shards {other} and {shard} are one database, {found}, so each row would be published "
            f"twice. Correct the variable {(whole.shards or {})[shard]}, or remove one of the two; if one is a "
            f"physical copy, go on with {_run_adopting(name)}."
        )


def _twins(
    site: Claim, found: Provenance, known: KnownProvenance, met: Mapping[str, Provenance]
) -> dict[str, Provenance]:
    """Return the other shards that are the same database, but for those that either was taken over beside."""
    twins = {}
    for each in site.export.whole.shards or {}:
        memory = site.state.provenance(kept_as(site.export, each))
        theirs = met.get(each) or memory.provenance
        if each == site.shard or theirs is None or not is_same(theirs, found):
            continue
        # A reset accepts what a shard was itself, so that it is the other one's name that counts.
        pairs = [(theirs, known.accepted), (found, memory.accepted)]
        if not any(is_same(it, one) and it.source_name == one.source_name for one, held in pairs for it in held):
            twins[each] = theirs
    return twins


def refuse_destination(
    name: str, found: Provenance, known: KnownProvenance, standing: Manifest | None, *, root: Root
) -> None:
    """Refuse a place that holds another database's rows, unless these are what the export's own state was of before.

    Raises:
        ProvenanceRefused
    """
    if standing is None:
        return
    other = standing.source.provenance
    what = difference(other, found)
    # What a user took over once stays taken over: its manifests are replaced window by window, for as long as that
    # takes.
    if what and not is_any(other, known.accepted):
        raise ProvenanceRefused(
            f"Export {name}: {root.uri} holds rows of {other} (run {standing.run_id}), and this run reads {found}: "
            f"{what} is another one, and publishing would remove what is there. Give one of the two another "
            f"`destination` path. If this is the same export in a new place, go on with {_run_adopting(name)}."
        )


def _run_adopting(name: str) -> str:
    """Return the command that takes over what is kept under a name: of a shard by its partition."""
    whole, found, shard = name.partition(f"/{COLUMN}=")
    asked = f"{whole} --partition {shard}" if found else name
    return f"`rivet run -e {asked} --adopt` (in Dagster: run tag {ADOPT}: true)"


def of_state(name: str, store: str, what: str, known: Provenance, found: Provenance) -> str:
    """Return that state is of another database, and the ways out."""
    return (
        f"Export {name}: its state in {store} is of {known}, and this run reads {found}: {what} is another one. It was "
        f"restored or replaced, `source` leads elsewhere, or another file has an export and a source of these names. "
        f"Point `source` back; or name the source (`sources: {{…}}`) or the `project:`, so that each file has state of "
        f"its own; or go on where the state stands with {_run_adopting(name)}; or begin anew with "
        f"`rivet state reset -e {name}`."
    )


def refuse_moved(site: Claim, known: KnownProvenance) -> None:
    """Refuse to go on from a cursor at a place to which the rows before it never came.

    Raises:
        ProvenanceRefused
    """
    held = site.state.cursor(site.export.name)
    if held is not None and held.value is not None and site.place:
        what = f"its cursor in {site.state.name}"
        refuse_elsewhere(site.export.name, held.value, known, root=site.root, place=site.place, what=what)


def refuse_elsewhere(name: str, end: str, known: KnownProvenance, *, root: Root, place: str, what: str) -> None:
    """Refuse a place without the window that ends where an export's last one did, unless it is the place of before.

    A place that was moved with its manifests, or mounted elsewhere, holds that window.

    Args:
        end: cursor or position at which the last window ended.
        what: says so to people.

    Raises:
        ProvenanceRefused
    """
    # By content and not by address: a bucket that was copied, or a disk mounted elsewhere, has the windows with it.
    if known.destination in ("", place) or end in evidence_at(root).reached:
        return
    raise ProvenanceRefused(
        f"Export {name}: {what} is of the destination {known.destination}, and this run writes to {place}, which has "
        f"no window that ends there: rows up to it would be missing. Point `destination` back; or write all rows to "
        f"the new one with `rivet state reset -e {name}`; or only new ones with {_run_adopting(name)}."
    )


def refuse_unproven(site: Claim, manifests: Iterable[Manifest] = ()) -> None:
    """Refuse a beginning that an earlier Rivet may have taken from another file's export of the same name.

    Up to version 3 of the state store two such exports read each other's cursor. Either the cursor that lies there may
    be another's, and the destination says nothing; or the windows at the destination begin where another one ended.

    Raises:
        ProvenanceRefused
    """
    name, evidence = site.export.name, evidence_in(manifests)
    if site.state.adoptions().find_doubted(name, evidence):
        said = (
            f"its windows at {site.root.uri} begin at a cursor that a run without a window there had reached: of this "
            f"export, if its first manifests were removed, or of another file's of the same name, whose cursor an "
            f"earlier Rivet took. Then rows before it were never exported. If all are there, or gone on purpose,"
        )
    elif not evidence.committed and site.state.adoptions().cursor(name) is not None:
        said = (
            f"{site.state.name} holds a cursor that an earlier Rivet kept under this name alone, and nothing at "
            f"{site.root.uri} says whether it is of this export or of another file's of the same name. If it is,"
        )
    else:
        return
    raise ProvenanceRefused(
        f"Export {name}: {said} go on with {_run_adopting(name)}; if not, "
        f"begin at the start with `rivet state reset -e {name}`, which replaces what is there."
    )
