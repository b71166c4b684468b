"""One self-contained HTML page of a plan: no network, no server, every number from the plan file and its job."""
