"""The jobs on Spark: against the obvious Spark job, against Parquet, by size and by cores."""
