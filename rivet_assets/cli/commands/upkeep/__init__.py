"""Commands that keep what is published in order: `rivet compact`, `rivet retain`."""
