"""The disk is the subject."""

from tests.support.disk_directory import tmp_path as tmp_path
