"""What is told of runs to the tools that watch them: metrics, traces, lineage. Not here: people (`notify/`)."""
