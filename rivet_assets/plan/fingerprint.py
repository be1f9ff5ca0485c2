"""An export as it is resolved now: for people without its secrets, and as a fingerprint that a later look must meet.

Belongs here: what of a configuration a plan shows, what it proves, what it hides. Not here: anything found at a source.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rivet_assets.blocks.export import NOT_OF_THE_ROWS
from rivet_assets.config.variables import PATTERN, Substitution
from rivet_assets.config.yaml_document import YamlFault, read_yaml
from rivet_assets.modes.by_shard import shards_apart, source_of_shard
from rivet_assets.plan.artefact import fingerprint
from rivet_resources.errors import ConfigError

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig
    from rivet_resources.contracts.source import Source

HIDDEN = "(hidden)"
# Keys of a source whose values are addresses or secrets themselves; `url_env` and its like are names and stay.
SECRET_KEYS = frozenset({"url", "password"})
# What is put into these keys from outside names places, which a reviewer wants to read.
PLAIN_KEYS = frozenset(
    {"name", "table", "tables", "path", "bucket", "account", "container", "prefix", "mode", "format", "start", "end"}
)
# Keys of a source that say how fast and when it is read, and nothing of the rows.
LIMITS = frozenset({"rate_limit", "read_windows", "budget"})
# A shorter text from outside would be found in every statement.
SHORTEST_HIDDEN = 3
CONNINFO = re.compile(r"\b(host|hostaddr|port|dbname)\s*=\s*('[^']*'|\S+)")


def export_fingerprint(config: RivetConfig, export: Export) -> str:
    """Hash all that decides what a run reads and writes, query texts and the place of the source among it.

    Left out are secrets, and keys that only say when an export runs and who is told.

    Raises:
        ConfigError: the variable or file that says where the source is cannot be read.
    """
    # Secrets are left out, so that a rotated password spoils no plan.
    _, source = config.source_of(export)
    shards = [source_of_shard(export, ("", source), shard)[1] for shard in export.shards or ()]
    document = {
        "export": export.model_dump(mode="json", exclude=NOT_OF_THE_ROWS | export.unset_later_keys() | {"source"}),
        "source": {key: value for key, value in _source_block(source).items() if key not in LIMITS},
        "place": [_place(each) for each in shards] if shards else _place(source),
        "destination": export.destination.root(export.name).uri,
    }
    return fingerprint(document)


def config_fingerprint(config: RivetConfig) -> str:
    """Hash the file as it is written; '' when it was built in Python."""
    return fingerprint(config.file.read_text(encoding="utf-8-sig")) if config.file else ""


def redact(config: RivetConfig, export: Export, hide: Hidden) -> dict[str, Any]:
    """Return the export's block with all defaults, and its source's; what came from outside is its `${NAME}` again."""
    _, source = config.source_of(export)
    block = export.model_dump(mode="json", exclude_none=True, exclude={"source"})
    whole: dict[str, Any] = hide.values({**block, "mode": export.mode, "source": _source_block(source)})
    return whole


class Hidden:
    """Texts that no plan may show, and what stands in their place."""

    def __init__(self, words: Mapping[str, str]) -> None:
        # The longest first, since one may be a part of another, and the pattern takes the first that fits.
        self._words = dict(sorted(words.items(), key=lambda pair: -len(pair[0])))
        self._pattern = re.compile("|".join(map(re.escape, self._words))) if words else None

    def text(self, text: str) -> str:
        """Return a text without them."""
        return self._pattern.sub(lambda match: self._words[match[0]], text) if self._pattern else text

    def values(self, value: Any, key: str = "") -> Any:
        """Return a JSON value whose texts are without them."""
        if isinstance(value, Mapping):
            return {name: self.values(inner, str(name)) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.values(inner, key) for inner in value]
        return self.text(value) if isinstance(value, str) and key not in PLAIN_KEYS else value


def collect_hidden(config: RivetConfig, params: Mapping[str, str]) -> Hidden:
    """Collect what came into the file by `${NAME}`, and the secrets of all sources as far as they can be read now."""
    words = {word: HIDDEN for source in _sources(config) for word in _secrets(source) if word}
    for name, found in _answers(config, params):
        if len(found) >= SHORTEST_HIDDEN:
            words.setdefault(found, f"${{{name}}}")
    return Hidden(words)


def _sources(config: RivetConfig) -> list[Source]:
    return [
        source_of_shard(alone, config.source_of(alone), shard)[1]
        for export in config.exports
        for shard, alone in shards_apart(export)
    ]


def _secrets(source: Source) -> tuple[str, ...]:
    """Return what no text may show; a missing variable is told by whoever connects."""
    asked = getattr(source, "secret_texts", None)
    try:
        return tuple(asked()) if asked else ()
    except ConfigError:
        return ()


def _answers(config: RivetConfig, params: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Find every reference written in the file and its query files, with the text it got from outside."""
    if config.file is None:
        return
    substitution = Substitution(params)
    for text in _references_in(config.file):
        for match in PATTERN.finditer(text):
            name = (match[1] or "").partition(":-")[0]
            found = substitution.params.get(name) or substitution.environment.get(name)
            if found:
                yield name, found


def _references_in(file: Path) -> Iterator[str]:
    try:
        root = read_yaml(file.read_text(encoding="utf-8-sig")).value
    except (OSError, YamlFault):
        return
    for key, text in _texts(root):
        if key not in PLAIN_KEYS:
            yield text
        if key == "query_file" and (file.parent / text).is_file():
            yield (file.parent / text).read_text(encoding="utf-8-sig")


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(inner, str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, key)
    elif isinstance(value, str):
        yield key, value


def _source_block(source: Any) -> dict[str, Any]:
    block: dict[str, Any] = source.model_dump(mode="json", exclude_none=True)
    return {key: HIDDEN if key in SECRET_KEYS else value for key, value in block.items()}


def _place(source: Any) -> str:
    """Name the database that a URL leads to, without user and password; '' where the block says it in fields."""
    asked = getattr(source, "url_text", None)
    if asked is None:  # a file, or no database at all
        return str(getattr(source, "url", None) or os.environ.get(getattr(source, "path_env", None) or "", ""))
    url = asked() or ""
    if "://" not in url:
        return " ".join("=".join(found) for found in CONNINFO.findall(url))
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
