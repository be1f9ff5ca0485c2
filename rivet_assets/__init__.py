"""DECIDES: what to read, in which windows, under which rules; describes it to Dagster, lazily.

Belongs here: configuration, modes, quality rules, Dagster definitions, the command line.
Not here: anything that holds a connection, a file or a clock (`rivet_resources`).

`Exports` is found here by its YAML name, `type: rivet_assets.Exports`, and imported only when asked for: the pure core
needs no Dagster.
"""


def __getattr__(name: str) -> object:
    if name == "Exports":
        from rivet_assets.dagster.component import Exports  # Dagster

        return Exports
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), "Exports"]  # `dg` looks for components among the names that a module lists
