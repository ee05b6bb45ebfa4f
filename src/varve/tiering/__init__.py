"""Copy sealed segments out, their manifests, restore, and an account of every object."""
