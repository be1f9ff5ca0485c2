"""A file whose text is a secret: read whole, bounded, and nothing of it is shown where it cannot be.

Belongs here: reading. Not here: which files are asked (`secrets.py`, `secret_stores.py`).
"""

from __future__ import annotations

from pathlib import Path

MOST_BYTES = 1 << 20  # a device, or a dump that was named by mistake, would fill the memory


def secret_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        ValueError: why it cannot be read, in words that show nothing of it.
    """
    try:
        with path.open("rb") as file:
            found = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(error.strerror or "it does not open") from None
    if len(found) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES >> 20} MB, which no secret has")
    try:
        return found.decode()
    except UnicodeDecodeError:
        # Without a cause: its text has a byte of the secret.
        raise ValueError("it is not UTF-8 text") from None
