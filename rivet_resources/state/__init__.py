"""What Rivet remembers between runs. The manifests are the truth; this store can be rebuilt from them."""
