"""`${NAME}` in scalars: `--param` first, then the environment.

Belongs here: replacing references in parsed values and in the text of a `query_file`, and what is missing. Not
here: reading the YAML. A value cannot change the structure of the file: it lands inside one scalar
(`contract.md`, section 16, row 9). A scalar that is exactly one reference stays text; the field's type makes a
number or a truth value of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rivet_assets.blocks.choice import Loc

# One pass from left to right: `$${` is a literal `${`; an unclosed `${` matches nothing and stays.
PATTERN = re.compile(r"\$\$\{|\$\{([^}]*)\}")


@dataclass(frozen=True)
class MissingVariable:
    """A reference that nothing answers, or whose value cannot be used."""

    loc: Loc
    message: str
    code: str = "RIVET_CONFIG_VARIABLE_MISSING"


@dataclass
class Substitution:
    """Replaces references and remembers which params were used and what was missing."""

    params: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    used: set[str] = field(default_factory=set)
    missing: list[MissingVariable] = field(default_factory=list)

    def value(self, value: Any, loc: Loc = ()) -> Any:
        """Return a copy of a parsed value with the references in its texts replaced; keys stay, as texts."""
        if isinstance(value, Mapping):
            return {str(key): self.value(item, (*loc, str(key))) for key, item in value.items()}
        if isinstance(value, list):
            return [self.value(item, (*loc, index)) for index, item in enumerate(value)]
        return self.text(value, loc) if isinstance(value, str) else value

    def text(self, text: str, loc: Loc) -> str:
        """Return a text with its references replaced; inserted text is not looked at again."""
        # `$${` may stand behind the last brace; a reference cannot, and would be looked for to the end from each `${`.
        head, brace, tail = text.rpartition("}")
        return PATTERN.sub(lambda match: self._answer(match, loc), head + brace) + tail.replace("$${", "${")

    def unused(self) -> tuple[str, ...]:
        """List the params no reference asked for."""
        return tuple(sorted(set(self.params) - self.used))

    def _answer(self, match: re.Match[str], loc: Loc) -> str:
        if match[1] is None:
            return "${"
        name, has_default, default = match[1].partition(":-")
        found = self._look_up(name)
        if found is not None and "\0" in found:
            self.missing.append(
                MissingVariable(
                    loc, f"${{{name}}} holds a NUL character; set another value", "RIVET_CONFIG_VARIABLE_NUL"
                )
            )
            return ""
        if has_default:
            return found or default
        if found is None:
            message = f"${{{name}}} is not set. Pass --param {name}=VALUE, or export {name} in the environment"
            self.missing.append(MissingVariable(loc, message))
        return found or ""

    def _look_up(self, name: str) -> str | None:
        """Find a value; the empty name is empty (`contract.md`, 1.1)."""
        if name in self.params:
            self.used.add(name)
            return self.params[name]
        return self.environment.get(name) if name else ""


def has_reference(text: str) -> bool:
    """Return whether a text, as written, takes anything from outside."""
    return any(match[1] is not None for match in PATTERN.finditer(text))
