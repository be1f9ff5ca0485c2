"""References of contracts to other exports of the file: joined to what they name, or refused.

Belongs here: names, and which exports can be looked up in. Not here: looking (`run/judge/references.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from pydantic_core import InitErrorDetails

from rivet_assets.blocks.choice import nearest, refusal
from rivet_assets.blocks.contract import CODE
from rivet_assets.blocks.export import Export

AnExport = TypeVar("AnExport", bound=Export)


def with_references(exports: Sequence[AnExport]) -> Iterator[AnExport]:
    """Yield the exports, each reference of their contracts with the export that it names, where there is one."""
    known = {export.name: export for export in exports}
    for export in exports:
        contract = export.contract
        if contract is None or not contract.references:
            yield export
            continue
        joined = {name: each.to(known.get(each.export)) for name, each in contract.references.items()}
        yield export.model_copy(update={"contract": contract.model_copy(update={"references": joined})})


def broken_references(exports: Sequence[Export]) -> Iterator[InitErrorDetails]:
    """Yield the faults of references: no such export, one without rows to read, itself, or one another in a circle."""
    known = {export.name: export for export in exports}
    for index, export in enumerate(exports):
        for name, reference in (export.contract.references if export.contract else {}).items():
            if told := _fault(export, reference.export, known):
                yield refusal(CODE, told, loc=("exports", index, "contract", "references", name, "export"))


def _fault(export: Export, name: str, known: Mapping[str, Export]) -> str:
    """Return why an export cannot look values up in the one of that name; '' where it can."""
    other = known.get(name)
    if other is None:
        close = nearest(name, known)
        there = f"there are {', '.join(known)}"
        return f"{name!r} is no export of this file; {there}.{f' Did you mean {close}?' if close else ''}"
    if other.name == export.name:
        return (
            "is this export itself, whose window is not published yet; write a rule of `sql` over `rows`: "
            "select count(*) from rows where parent not in (select id from rows)"
        )
    if other.answers.holds_changes or other.answers.follows_log:
        return f"is {name}, which keeps changes, not rows; name an export of the table in another mode"
    if other.is_apart:
        return f"is {name}, whose shards have folders of their own; name an export of mode full of the same table"
    if other.destination.is_stream:
        return f"is {name}, which writes to a stream that keeps nothing; name one with files"
    if export.name in _reached(other, known):
        return f"is {name}, whose own references lead back here; neither could be exported first. Remove one"
    return ""


def _reached(export: Export, known: Mapping[str, Export]) -> set[str]:
    """Name the exports that one refers to, directly or by others."""
    found, waiting = set[str](), [export]
    while waiting:
        each = waiting.pop()
        names = {reference.export for reference in each.contract.references.values()} if each.contract else set[str]()
        waiting += [known[name] for name in names - found if name in known]
        found |= names
    return found
