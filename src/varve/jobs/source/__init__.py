"""The data source `varve`: a topic as rows, read by tasks from both tiers."""
