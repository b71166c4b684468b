"""The candidates of one role, as tests ask for them."""

from mapper.candidates.listing import bounding_tables
from mapper.candidates.table import RoleTable
from mapper.deadline import NEVER, Deadline
from mapper.problem import Problem


def role_table(problem: Problem, role: str, prune: bool = True, deadline: Deadline = NEVER) -> RoleTable:
    """Every configuration of ``role`` that may be in a plan, priced."""
    return bounding_tables(problem, (role,), prune, deadline)[role].listed()


def bounding_table(problem: Problem, role: str, prune: bool = True) -> RoleTable:
    """The same, and behind them those that are in no plan but in the bound."""
    return bounding_tables(problem, (role,), prune)[role]
