"""Clients for people and programs: the topics, groups, ACLs, users and records of any broker."""
