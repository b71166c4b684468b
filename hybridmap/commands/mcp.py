"""``hybridmap mcp``: the answers as tools for coding agents, over standard input and output."""


def mcp() -> None:
    """Serve planning tools to a coding agent (Model Context Protocol, over standard input and output).

    Tools: plan, simulate, fit, compare, explain, export, import_script, calibrate, known_names.
    """
    from hybridmap.agent.server import make_server

    make_server().run("stdio")
