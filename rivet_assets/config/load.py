"""Reading a configuration: a file, a text, or a component's attributes, into a RivetConfig.

Belongs here: the order (read, substitute, validate, load query files, warn), and that all faults are told at
once. Not here: the keys (`root.py`, `blocks/export.py`, `modes/`), the sentences (`errors.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rivet_assets.config.contract_file import ContractFault, ContractFile, read_contract, text_beside
from rivet_assets.config.errors import ConfigFault, config_error, findings, key_path, lines, owner_of
from rivet_assets.config.json_schema import ExportsAttributes, config_json_schema
from rivet_assets.config.root import AnyExport, RivetConfig
from rivet_assets.config.variables import MissingVariable, Substitution
from rivet_assets.config.warnings import warnings_of
from rivet_assets.config.yaml_document import Document, YamlFault, read_documents, read_yaml
from rivet_resources.contracts.settings import beside
from rivet_resources.errors import ConfigError
from rivet_resources.secrets import declare

__all__ = [
    "AnyExport", "ExportsAttributes", "RivetConfig", "config_from_attributes", "config_json_schema", "load_config",
    "load_text",
]  # fmt: skip

MISSING = "; or write one for the tables of your database with `rivet init`, or see one that runs with `rivet demo`"


def load_config(path: Path | str, *, params: Mapping[str, str] | None = None) -> RivetConfig:
    """Read a `rivet.yaml`; references take `params` first, then the environment.

    Raises:
        ConfigError: the file cannot be read, or is wrong; one line per fault, `codes` in the same order.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        hint = MISSING if isinstance(error, FileNotFoundError) else ""
        raise ConfigError(
            f"{file} cannot be read: {error.strerror}. Name a file with -c{hint}.", codes=("RIVET_CONFIG_FILE",)
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text. Save it as UTF-8.", codes=("RIVET_CONFIG_FILE",)) from error
    return load_text(text, file=file, params=params)


def load_text(text: str, *, file: Path, params: Mapping[str, str] | None = None) -> RivetConfig:
    """Read a configuration from a text as if it stood in `file`, whose folder query files are looked up in.

    Raises:
        ConfigError: as `load_config`.
    """
    try:
        document = read_yaml(text)
    except YamlFault as fault:
        raise _not_yaml(fault, file) from fault
    return _Reading(document, document.value, file, Substitution(params or {})).config()


def config_from_attributes(
    attributes: Mapping[str, Any] | None, *, file: Path, params: Mapping[str, str] | None = None
) -> RivetConfig:
    """Read a configuration from the `attributes:` of a Dagster component in `file` (its `defs.yaml`).

    The file is read again, for line numbers and for YAML 1.2's idea of `on` and of days; where the attributes
    are not found in it, they are taken as given and every fault stands on line 1.

    Raises:
        ConfigError: as `load_config`.
    """
    document = _attributes_in(file, attributes or {})
    block = dict(attributes or {}) if document is None else document.value
    return _Reading(document or Document(block, None), block, file, Substitution(params or {})).config()


def _attributes_in(file: Path, attributes: Mapping[str, Any]) -> Document | None:
    """Find the document of a component file whose attributes were given; by the names of its exports."""
    try:
        documents = read_documents(file.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, YamlFault):
        return None
    for document in documents:
        inner = document.below("attributes")
        if inner is not None and _names(inner.value) == _names(attributes):
            return inner
    return None


def _names(block: Any) -> list[str]:
    exports = block.get("exports") if isinstance(block, Mapping) else None
    return [str(e.get("name")) if isinstance(e, Mapping) else "" for e in exports] if isinstance(exports, list) else []


def _display(file: Path) -> str:
    """Name a file as briefly as is clear: relative where it lies below the working folder."""
    whole = file.absolute()
    return str(whole.relative_to(Path.cwd()) if whole.is_relative_to(Path.cwd()) else whole)


def _not_yaml(fault: YamlFault, file: Path) -> ConfigError:
    return ConfigError(f"{_display(file)}:{fault.line}: {fault.message}", codes=(fault.code,))


@dataclass
class _Reading:
    """One configuration on its way from a parsed document to a RivetConfig."""

    document: Document
    written: Any  # the root block, references unresolved
    file: Path
    substitution: Substitution
    queries: dict[int, str] = field(default_factory=dict)  # texts of query files, by the export's position
    contracts: dict[int, ContractFile] = field(default_factory=dict)

    def config(self) -> RivetConfig:
        """Go the whole way, and raise all faults together."""
        block = self.substitution.value(self.written)
        found = [ConfigFault(d.loc, d.code, d.message, d.line) for d in self.document.duplicates]
        found += self._query_files(block)
        found += self._contract_files(block)
        found += [self._unanswered(missing, block) for missing in self.substitution.missing]
        try:
            with beside(self.file):
                config = RivetConfig.model_validate({} if block is None else block)
        except ValidationError as error:
            unanswered = {missing.loc for missing in self.substitution.missing}
            found += [self._placed(f) for f in findings(error, block, self.document) if f.loc not in unanswered]
        if found:
            raise config_error(found, block, file=_display(self.file))
        declare(config.secrets)
        return self._completed(config, block)

    def _unanswered(self, missing: MissingVariable, block: Any) -> ConfigFault:
        key = key_path(missing.loc[len(owner_of(missing.loc, block)[1]) :])
        return ConfigFault(missing.loc, missing.code, f"{key}: {missing.message}", self.document.line(missing.loc))

    def _query_files(self, block: Any) -> Iterator[ConfigFault]:
        """Read every query file, and substitute in it."""
        exports = block.get("exports") if isinstance(block, Mapping) else None
        for index, export in enumerate(exports if isinstance(exports, list) else ()):
            name = export.get("query_file") if isinstance(export, Mapping) else None
            if not isinstance(name, str) or not name:
                continue
            loc = ("exports", index, "query_file")
            try:
                text = text_beside(name, self.file.parent, empty="write a SELECT into it")
                self.queries[index] = self.substitution.text(text, loc)
            except ContractFault as error:
                yield ConfigFault(
                    loc,
                    "RIVET_CONFIG_QUERY_FILE",
                    f"query_file '{self.document.written(loc) or name}' {error}",
                    self.document.line(loc),
                )

    def _contract_files(self, block: Any) -> Iterator[ConfigFault]:
        """Read every contract that stands in a file, and put it where it is named."""
        exports = block.get("exports") if isinstance(block, Mapping) else None
        for index, export in enumerate(exports if isinstance(exports, list) else ()):
            name = export.get("contract") if isinstance(export, Mapping) else None
            if not isinstance(name, str):
                continue
            loc = ("exports", index, "contract")
            try:
                self.contracts[index] = read_contract(name, self.file.parent, tables=_tables_of(export))
                export["contract"] = dict(self.contracts[index].block)
            except ContractFault as error:
                export["contract"] = None
                yield ConfigFault(loc, error.code, f"contract '{name}' {error}", self.document.line(loc))

    def _placed(self, fault: ConfigFault) -> ConfigFault:
        """Return a fault with its line in the contract's file, where it stands in one."""
        contract = self.contracts.get(int(fault.loc[1])) if fault.loc[2:3] == ("contract",) else None
        if contract is None:
            return fault
        return replace(fault, message=f"{contract.place(fault.loc[3:])}: {fault.message}")

    def _completed(self, config: RivetConfig, block: Any) -> RivetConfig:
        """Add what a model cannot know: texts of query files, where things stand, warnings."""
        exports = tuple(
            export.model_copy(update={"query": self.queries[index]}) if index in self.queries else export
            for index, export in enumerate(config.exports)
        )
        warned = warnings_of(self.document, block, config, unused=self.substitution.unused())
        return config.model_copy(update={"exports": exports}).placed(
            file=self.file,
            lines={export.name: self.document.line(("exports", index)) for index, export in enumerate(exports)},
            warnings=tuple(lines(warned, block, file=_display(self.file))),
        )


def _tables_of(export: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a contract may call an export's table: its name, with schema or without, and the export's."""
    table = str(export.get("table") or "")
    return tuple(dict.fromkeys(filter(None, (table, table.rpartition(".")[2].strip('"`[]'), str(export.get("name"))))))
