"""Everything in a bucket held against everything else."""
