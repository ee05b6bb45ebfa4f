"""The remote tier: copies closed segments to object storage, reads and expires them there,
manifests, restore, fsck.
"""
