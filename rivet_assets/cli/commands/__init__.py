"""One file per command of `rivet`: reads arguments, calls one function, prints what came back; no work is done here.

A new command is one file here and one line in `COMMANDS` of `rivet_assets/cli/main.py`, which imports it when asked
for.
"""
