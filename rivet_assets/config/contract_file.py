"""`contract: file.yaml`: a contract that stands in a file of its own, beside the configuration or below.

Belongs here: reading it, and on which of its lines a fault is. Not here: its keys (`blocks/contract.py`), contracts of
the Open Data Contract Standard (`odcs.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rivet_assets.blocks.choice import Loc
from rivet_assets.blocks.contract import CODE
from rivet_assets.config.odcs import OdcsFault, is_odcs, read_odcs
from rivet_assets.config.yaml_document import Document, YamlFault, read_yaml


class ContractFault(Exception):
    """A contract's file that cannot be used; the message reads on from the file's name."""

    def __init__(self, message: str, *, code: str = CODE) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class ContractFile:
    """A contract as it was read: the block it stands for, and where its keys are written."""

    name: str
    block: Mapping[str, Any]
    document: Document
    origins: Mapping[Loc, Loc] = field(default_factory=dict)  # place in the block → place in the file

    def place(self, loc: Loc) -> str:
        """Return `file:line` of a key of the block."""
        for length in range(len(loc), 0, -1):
            if (origin := self.origins.get(loc[:length])) is not None:
                return f"{self.name}:{self.document.line(origin)}"
        return f"{self.name}:{self.document.line(loc if not self.origins else ())}"


def read_contract(written: str, folder: Path, *, tables: Sequence[str]) -> ContractFile:
    """Read a contract's file: Rivet's own keys, or the Open Data Contract Standard, which says of itself that it is.

    Args:
        written: the file below `folder`, and behind `#` which table of a contract of several is meant.
        tables: names that the export's table may have in such a contract.

    Raises:
        ContractFault: it lies elsewhere, cannot be read, or is no contract.
    """
    name, _, wanted = written.partition("#")
    text = text_beside(name, folder, empty="write a contract into it")
    try:
        document = read_yaml(text)
    except YamlFault as fault:
        raise ContractFault(f"line {fault.line} {fault.message}", code=fault.code) from fault
    if document.duplicates:
        first = document.duplicates[0]
        raise ContractFault(f"line {first.line}: {first.message}", code=first.code)
    if not isinstance(document.value, Mapping):
        raise ContractFault("is not a block; write keys such as `columns:`")
    if not is_odcs(document.value):
        return ContractFile(name, document.value, document)
    try:
        block, origins = read_odcs(document, tables, wanted=wanted)
    except OdcsFault as fault:
        raise ContractFault(str(fault)) from None
    return ContractFile(name, block, document, origins)


def text_beside(name: str, folder: Path, *, empty: str) -> str:
    """Read a file of the config's folder, or below.

    Raises:
        ContractFault: it lies elsewhere, cannot be read, or is empty.
    """
    path = Path(name)
    if path.is_absolute() or ".." in path.parts:
        raise ContractFault("leaves the folder of the config; write a path relative to it, without '..'")
    whole = (folder / path).resolve()
    if not whole.is_relative_to(folder.resolve()):
        raise ContractFault("resolves to a place outside the folder of the config; copy the file there")
    try:
        text = whole.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ContractFault(f"cannot be read: {error.strerror}; it is looked up beside the config") from error
    except UnicodeDecodeError as error:
        raise ContractFault("is not UTF-8 text; save it as UTF-8") from error
    if not text.strip():
        raise ContractFault(f"is empty; {empty}")
    return text
