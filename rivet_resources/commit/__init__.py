"""What readers see: manifests, and the one step that makes staged parts visible."""
