"""Values about rows that modes, reading, shaping and writing agree on."""
