"""From a change log to committed windows."""
