"""Who may do what: rights, credentials, quotas."""
