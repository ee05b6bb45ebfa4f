"""Verification of remote segments: objects, manifests and keys compared with each other."""
