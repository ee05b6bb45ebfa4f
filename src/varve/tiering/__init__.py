"""Copy sealed segments out, read and expire them there, their manifests, restore, and an account of
every object.
"""
