"""Plans, tasks and commits of the Spark jobs, without pyspark: read, write, compact, erase,
snapshot, table, verify.
"""
