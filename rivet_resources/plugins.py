"""Engines, destinations, formats, steps, checks and notifiers that other packages bring, by their entry points.

A package names each by its word in one of `GROUPS`: `ftp = "rivet_ftp.place:Ftp"` below
`[project.entry-points."rivet.destinations"]`. Belongs here: finding them without importing any, and loading one. Not
here: when they are looked for (`registry.py`: once a word is not Rivet's own), and what they must do (`contracts/`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rivet_resources.errors import RivetError

# Kind → the group of its entry points, and the protocol that its classes implement.
GROUPS: Mapping[str, str] = MappingProxyType(
    {
        "engine": "rivet.engines",
        "destination": "rivet.destinations",
        "format": "rivet.formats",
        "transform": "rivet.steps",
        "check": "rivet.checks",
        "notifier": "rivet.notifiers",
    }
)
PROTOCOLS = {
    "engine": "rivet_resources.contracts.source:Source",
    "destination": "rivet_resources.contracts.destination:Destination",
    "format": "rivet_resources.contracts.format:FileFormat",
    "transform": "rivet_resources.contracts.transform:Transform",
    "check": "rivet_resources.contracts.rows.window_check:WindowCheck",
    "notifier": "rivet_resources.contracts.notifier:Notifier",
}


class PluginBroken(RivetError):
    """A package offers something, an engine or a step for instance, that cannot be used."""

    code = "RIVET_PLUGIN_BROKEN"


@dataclass(frozen=True)
class Plugin:
    """One entry point: a word, and the class behind it."""

    kind: str
    word: str
    path: str  # module:Class
    package: str
    version: str

    @property
    def label(self) -> str:
        """Name it for people: what it is, and whose."""
        return f"{self.kind} {self.word!r} of package {self.package} {self.version} ({self.path})"

    def load(self) -> type[Any]:
        """Import its class.

        Raises:
            PluginBroken: it cannot be imported, or is nothing of this kind.
        """
        module, _, name = self.path.partition(":")
        try:
            made = getattr(_imported(module), name)
        except Exception as error:
            # Whatever somebody else's module does while it is imported.
            why = (str(error).splitlines() or [""])[0]
            raise self.broken(f"cannot be loaded: {type(error).__name__}: {why}") from error
        if missing := _missing(made, kind=self.kind):
            raise self.broken(f"is no {self.kind}: it lacks {', '.join(missing)}")
        return made  # type: ignore[no-any-return]

    def broken(self, why: str) -> PluginBroken:
        """Return the error of its use."""
        return PluginBroken(
            f"The {self.label} {why}. Update or uninstall that package; `rivet plugins` lists all of them."
        )


def installed(kind: str) -> Iterator[Plugin]:
    """Yield what the installed packages offer of a kind; none of it is imported."""
    from importlib.metadata import entry_points  # start: 10 ms for 230 packages, and nobody needs them at once

    for point in entry_points(group=GROUPS[kind]):
        package = (point.dist.name, point.dist.version) if point.dist is not None else ("unknown", "")
        yield Plugin(kind, point.name, point.value, *package)


def _imported(module: str) -> Any:
    from importlib import import_module  # start

    return import_module(module)


def _missing(made: Any, *, kind: str) -> list[str]:
    """Name what a class lacks of the protocol of its kind; all of it where it is no block of YAML."""
    module, _, name = PROTOCOLS[kind].partition(":")
    protocol = getattr(_imported(module), name)
    wanted = {
        each for base in protocol.__mro__ if base.__module__.startswith("rivet_resources.") for each in vars(base)
        if not each.startswith("_")
    }  # fmt: skip
    fields = getattr(made, "model_fields", None)
    if not isinstance(made, type) or fields is None:
        return ["model_validate: its class must be a Settings, as every block of YAML"]
    return sorted(each for each in wanted if each not in fields and not hasattr(made, each))
