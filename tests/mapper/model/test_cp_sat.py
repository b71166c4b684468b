"""Protects CP-SAT without pandas: it loads none, and who asks for a series later gets one."""

import subprocess
import sys

CODE = """
import sys
from mapper.model.cp_sat import cp_model
assert "pandas" not in sys.modules
model = cp_model.CpModel()
x = model.new_int_var(0, 5, "x")
model.maximize(x)
solver = cp_model.CpSolver()
assert solver.solve(model) == cp_model.OPTIMAL and solver.value(x) == 5
import pandas
assert list(model.new_bool_var_series("y", pandas.Index([1, 2])).index) == [1, 2]
"""


def test_pandas_is_loaded_only_for_series():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
