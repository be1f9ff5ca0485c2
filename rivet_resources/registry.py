"""Every engine, destination, format and step that Rivet has, each by the word that YAML uses for it.

One more of them is one line here, beside its own file or folder. Belongs here: the lists, nothing else. Not here: what
a thing can do, which the thing says itself (`contracts/`), and the modes (`rivet_assets/modes/registry.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from rivet_resources.plugins import Plugin, PluginBroken, installed


# The lists hold import paths, so that a configuration loads the engines it names and no other: of 185 modules that were
# loaded for a configuration, 54 were of other engines (measured 2026-11).
class Registry(Mapping[str, type[Any]]):
    """Classes by their word. Looking one up imports its module; listing the words does not."""

    def __init__(self, entries: Mapping[str, str], *, kind: str) -> None:
        """Keep import paths, `module:Class`, by word."""
        self._paths = dict(entries)
        self._loaded: dict[str, type[Any]] = {}
        self._kind = kind
        self._plugins: dict[str, list[Plugin]] | None = None  # by word; None: nobody asked yet

    def __getitem__(self, word: str) -> type[Any]:
        """Return the class behind a word.

        Raises:
            KeyError: there is none.
            PluginBroken: a package offers it, and it cannot be used.
        """
        if word not in self._loaded:
            if word not in self._paths and word in (found := self._offered()):
                self._loaded[word] = self._load(found[word])
            else:
                module, _, name = self._paths[word].partition(":")
                self._loaded[word] = getattr(import_module(module), name)
        return self._loaded[word]

    def __iter__(self) -> Iterator[str]:
        """List the words, in the order they are offered to people; those of packages once these were looked for."""
        yield from self._paths
        yield from (word for word in self._plugins or () if word not in self._paths)

    def __len__(self) -> int:
        """Return how many words there are."""
        return sum(1 for _ in self)

    def __contains__(self, word: object) -> bool:
        """Return whether there is such a word; imports nothing."""
        return word in self._paths or word in self._offered()

    def usable(self) -> dict[str, type[Any]]:
        """Return the classes of all words, those of packages that cannot be used left out; imports all of them."""
        words = [*self._paths, *(word for word in self._offered() if word not in self._paths)]
        found = {}
        for word in words:
            with suppress(PluginBroken):
                found[word] = self[word]
        return found

    def plugins(self) -> Iterator[tuple[Plugin, PluginBroken | None]]:
        """Yield what installed packages offer, and why it cannot be used; each is imported."""
        for word, offers in self._offered().items():
            for plugin in offers:
                error = None
                try:
                    if word in self._paths:
                        raise plugin.broken(f"has a word of Rivet's own; the package must choose another than {word!r}")
                    self._load(offers)
                except PluginBroken as broken:
                    error = broken
                yield plugin, error

    def _offered(self) -> dict[str, list[Plugin]]:
        # Words of other packages (`plugins.py`) are looked for once a word is none of Rivet's own; a configuration
        # without plugins never pays for that.
        if self._plugins is None:
            self._plugins = {}
            for plugin in installed(self._kind):
                self._plugins.setdefault(plugin.word, []).append(plugin)
        return self._plugins

    def _load(self, offers: Sequence[Plugin]) -> type[Any]:
        """Import the one class that is offered for a word.

        Raises:
            PluginBroken: it cannot be used, or several packages offer it.
        """
        plugin, *others = offers
        if others:
            raise plugin.broken(f"is also offered by {', '.join(each.package for each in others)}; keep one of them")
        return plugin.load()

    def is_same(self, one: str, other: str) -> bool:
        """Return whether two words mean the same class, as mysql and mariadb do; an unknown word means only itself."""
        return self._paths.get(one, one) == self._paths.get(other, other)

    def register(self, word: str, made: type[Any]) -> None:
        """Add a class from outside this repository, or put it in the place of another one."""
        self._paths[word] = f"{made.__module__}:{made.__qualname__}"
        self._loaded[word] = made

    def remove(self, word: str) -> None:
        """Take a class away again."""
        del self._paths[word]
        self._loaded.pop(word, None)


ENGINES = Registry(
    {
        "postgres": "rivet_resources.engines.postgres.source:Postgres",
        "mysql": "rivet_resources.engines.mysql.source:MySql",
        "mariadb": "rivet_resources.engines.mysql.source:MySql",
        "sqlserver": "rivet_resources.engines.sqlserver.source:SqlServer",
        "mssql": "rivet_resources.engines.sqlserver.source:SqlServer",
        "sqlite": "rivet_resources.engines.sqlite.source:Sqlite",
        "datagen": "rivet_resources.engines.datagen.source:Datagen",
    },
    kind="engine",
)

DESTINATIONS = Registry(
    {
        "local": "rivet_resources.destinations.local:Local",
        "s3": "rivet_resources.destinations.s3:S3",
        "gcs": "rivet_resources.destinations.gcs:Gcs",
        "azure": "rivet_resources.destinations.azure:Azure",
        "kafka": "rivet_resources.destinations.kafka:Kafka",
        "stdout": "rivet_resources.destinations.stdout:Stdout",
    },
    kind="destination",
)

FORMATS = Registry(
    {
        "parquet": "rivet_resources.write.formats.parquet:Parquet",
        "csv": "rivet_resources.write.formats.csv:Csv",
        "ndjson": "rivet_resources.write.formats.ndjson:Ndjson",
        "avro": "rivet_resources.write.formats.avro:Avro",
        "protobuf": "rivet_resources.write.formats.staged_messages:ProtobufMessages",
    },
    kind="format",
)

STEPS = Registry(
    {
        "filter": "rivet_resources.shape.transforms.filter:Filter",
        "mask": "rivet_resources.shape.transforms.mask:Mask",
        "field-mask": "rivet_resources.shape.transforms.mask:Mask",
        "mask_field": "rivet_resources.shape.transforms.mask:Mask",
        "rename": "rivet_resources.shape.transforms.rename:Rename",
        "rename_field": "rivet_resources.shape.transforms.rename:Rename",
        "drop": "rivet_resources.shape.transforms.columns:Drop",
        "remove_field": "rivet_resources.shape.transforms.columns:Drop",
        "keep": "rivet_resources.shape.transforms.columns:Keep",
        "cast": "rivet_resources.shape.transforms.cast:Cast",
        "add": "rivet_resources.shape.transforms.add:Add",
        "add_field": "rivet_resources.shape.transforms.add:Add",
        "insert_field": "rivet_resources.shape.transforms.add:Add",
        "compute": "rivet_resources.shape.transforms.compute:Compute",
        "compute_field": "rivet_resources.shape.transforms.compute:Compute",
        "lower": "rivet_resources.shape.transforms.text:Case",
        "upper": "rivet_resources.shape.transforms.text:Case",
        "trim": "rivet_resources.shape.transforms.text:Trim",
        "replace": "rivet_resources.shape.transforms.text:Replace",
        "substring": "rivet_resources.shape.transforms.text:Substring",
        "split": "rivet_resources.shape.transforms.text:Split",
        "concat": "rivet_resources.shape.transforms.text:Concat",
        "coalesce": "rivet_resources.shape.transforms.coalesce:Coalesce",
        "set_null": "rivet_resources.shape.transforms.set_null:SetNull",
        "timestamp": "rivet_resources.shape.transforms.times:Timestamp",
        "timestamp_converter": "rivet_resources.shape.transforms.times:Timestamp",
        "timezone": "rivet_resources.shape.transforms.times:Timezone",
        "timezone_converter": "rivet_resources.shape.transforms.times:Timezone",
        "flatten": "rivet_resources.shape.transforms.flatten:Flatten",
        "hash_bucket": "rivet_resources.shape.transforms.hash_bucket:HashBucket",
        "wasm": "rivet_resources.shape.transforms.wasm:Wasm",
    },
    kind="transform",
)

# Of packages only: Rivet's own checks are keys of `quality` and `contract`, its own notifiers keys of `notifications`.
CHECKS = Registry({}, kind="check")
NOTIFIERS = Registry({}, kind="notifier")


def engines_by_scheme() -> dict[str, str]:
    """Return {scheme of a URL: word of the engine that it means}."""
    return {scheme: word for made in dict.fromkeys(ENGINES.values()) for scheme, word in made.facts.schemes.items()}
