"""Copy sealed segments out, manifests, cold reads and cache, cold expiry, restore."""
