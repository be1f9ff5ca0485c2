"""What Rivet knows of rows that it makes up itself."""

from rivet_resources.contracts.engine_facts import EngineFacts

FACTS = EngineFacts(samples_bounds=True, knows_its_end=True, pages_cursors=True)
