"""One room per database engine, alike in file names, so that a diff shows the databases."""
