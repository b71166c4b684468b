"""Import of published operator tables from the package ``aiconfigurator-core``."""
