"""Asset checks of exports: verdicts of a run, and proofs that people ask for."""
