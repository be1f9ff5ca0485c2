"""`references:` of a contract: values of a window that another export's readers would look for in vain.

Belongs here: which exports can be referenced, what is asked before a row is read, the numbers. Not here: comparing
(`rivet_resources/prove/references.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from rivet_assets.run.judge.quality import Bounded
from rivet_resources.commit.manifest import current_manifests
from rivet_resources.contracts.rows.row_rules import hashed_name
from rivet_resources.prove.references import check_types, missing_values

if TYPE_CHECKING:
    from rivet_assets.blocks.contract import Contract, References
    from rivet_assets.blocks.export import Export
    from rivet_resources.contracts.destination import Root
    from rivet_resources.contracts.extract import Staged


def check_references(contract: Contract, shaped: pa.Schema) -> None:
    """See, before a row is read, that values can be compared with what the other exports have published.

    Raises:
        UnknownColumn: the other export has no such column.
        TransformError: two columns' types have no equal values.
        ManifestUnreadable, DestinationError: the other export cannot be read.
    """
    for reference in contract.references.values():
        if set(reference.columns) <= set(shaped.names):
            published = current_manifests(_place(reference))
            check_types(shaped, reference.columns, published, reference.key_columns)


def missing_references(contract: Contract, staged: Staged, root: Root) -> dict[str, Bounded]:
    """Return how many values of a staged window the referenced exports lack, by the name of the check.

    Raises:
        RivetError: the other export's files cannot be read.
    """
    # Decision: what is counted are distinct values, not rows: 128 bits of each distinct value are kept in the one pass
    # that writes, so neither the window nor the source is read a second time, on whatever store and in whatever format.
    names = set(pa.ipc.read_schema(pa.py_buffer(staged.schema_ipc)).names)
    return {
        f"references__{name}": _lookup(reference, staged, root)
        if names >= set(reference.columns)
        else Bounded(None, 0, 0, absent=f"the export has no column {', '.join(sorted(set(reference.columns) - names))}")
        for name, reference in contract.references.items()
    }


def _lookup(reference: References, staged: Staged, root: Root) -> Bounded:
    other, files = _place(reference), staged.measures.unique.get(hashed_name(reference.columns), [])
    missing = missing_values(root, files, other=other, key=reference.key_columns) if files else 0
    text = f"distinct values of {', '.join(reference.columns)} that {reference.export} does not have"
    if missing and not current_manifests(other):
        text += f", which has published nothing yet: run export {reference.export} first"
    return Bounded(missing, 0, 0, text)


def is_published(reference: References) -> bool:
    """Return whether the other export has any window that readers see."""
    return bool(current_manifests(_place(reference)))


def _place(reference: References) -> Root:
    """Return where the other export's windows are."""
    export: Export = reference.referenced
    root: Root = export.destination.on(datetime.now(UTC).date()).root(export.name)
    return root


def references_of(export: Export) -> Iterator[Export]:
    """Yield the exports whose rows the contract of this one looks values up in, each once."""
    given = export.contract.references.values() if export.contract is not None else ()
    yield from {each.export: each.referenced for each in given}.values()
