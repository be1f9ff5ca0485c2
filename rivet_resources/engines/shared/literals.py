"""Names and texts between quotes, and what a text must be to be a literal, where engines agree on it.

Belongs here: rules of one text. Not here: an engine's own literals (`engines/*/sql.py`), the pieces of a SELECT
(statements.py).
"""

from __future__ import annotations

from uuid import UUID

from rivet_resources.errors import ConfigError


def quoted_name(name: str, *, opening: str = '"', closing: str = '"') -> str:
    """Return one identifier between quotes, closing ones inside it doubled.

    Raises:
        ConfigError: the name is empty or holds a NUL.
    """
    # A NUL would end the name inside a driver in C, and another table be read.
    if not name or "\0" in name:
        raise ConfigError(f"{name!r} cannot be the name of a column or table; names are non-empty and hold no NUL.")
    return f"{opening}{name.replace(closing, 2 * closing)}{closing}"


def is_uuid(text: str) -> bool:
    """Return whether a text is a UUID, in any spelling that Python reads."""
    try:
        return bool(UUID(text))
    except ValueError:
        return False
