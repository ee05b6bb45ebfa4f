"""File system protocol: real, in memory, faulty; atomic write; directory sync; locks."""
