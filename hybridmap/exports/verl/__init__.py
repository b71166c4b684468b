"""verl 0.9: a plan as its configuration and script, and a run of it read back as a job and a plan."""
