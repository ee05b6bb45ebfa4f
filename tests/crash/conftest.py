"""What crash tests write to files goes to the disk."""

from tests.support.disk_directory import tmp_path as tmp_path
