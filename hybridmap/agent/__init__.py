"""hybridmap for coding agents: its answers as tools of the Model Context Protocol."""
