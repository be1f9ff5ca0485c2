"""DECIDES: what to read, in which windows, under which rules; describes it to Dagster, lazily.

Belongs here: configuration, modes, quality rules, Dagster definitions, the command line.
Not here: anything that holds a connection, a file or a clock (`rivet_resources`).
"""
