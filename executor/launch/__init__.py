"""Starting the ranks of a pool: in this process, or as Ray actors."""
