"""ACLs, SCRAM credentials and client quotas."""
