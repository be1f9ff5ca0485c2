"""Random workloads: writers, DDL and deaths around one export, and a model of what a reader must find afterwards.

Belongs here: a seed's plan (`plan.py`), doing it (`run.py`), judging what is published (`judge.py`). Not here: faults
that need an exact place or moment (`tests/faults`).
"""
