"""From a YAML file to a configuration, or to an error that names the line."""
