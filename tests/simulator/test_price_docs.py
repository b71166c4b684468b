"""Protects what a caller of a price reads: each public function says its parameters, what it returns, and in which unit
and shape. What a whole room calls by one name its ``__init__.py`` explains once.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("simulator/cost", "simulator/rollout", "simulator/play", "profiles/lookup")
FILES = sorted(path for room in ROOMS for path in (ROOT / room).glob("*.py"))


def functions(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef, str]]:
    """Every public function and method, each with the docstring of its class."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node, ""
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            of_class = ast.get_docstring(node) or ""
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_"):
                    yield inner, of_class


def parameters(node: ast.FunctionDef) -> list[str]:
    given = node.args
    names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs) if a.arg != "self"]
    names += [f"*{given.vararg.arg}"] if given.vararg else []
    return names + ([f"**{given.kwarg.arg}"] if given.kwarg else [])


def section(text: str, title: str) -> list[str]:
    """Names that a numpydoc section explains, in order."""
    found = re.search(rf"^{title}\n-+\n(.*?)(?=^\w+\n-+\n|\Z)", inspect.cleandoc(text), re.MULTILINE | re.DOTALL)
    lines = found[1].splitlines() if found else []
    return [name.strip() for line in lines if line and not line.startswith(" ") for name in line.split(",")]


def says_nothing_more(node: ast.FunctionDef) -> bool:
    """A property, or a method that another one's docstring explains."""
    text = ast.get_docstring(node) or ""
    decorators = {ast.unparse(d) for d in node.decorator_list}
    return bool(decorators & {"property", "cached_property"}) or text.startswith("See ``")


def of_room(path: Path) -> list[str]:
    """Parameters that the docstring of a file's package explains for all functions in it."""
    return section(ast.get_docstring(ast.parse((path.parent / "__init__.py").read_text())) or "", "Parameters")


def faults(tree: ast.Module, known: list[str]) -> list[str]:
    found = []
    for node, of_class in functions(tree):
        text, names = ast.get_docstring(node) or "", parameters(node)
        if says_nothing_more(node) or (of_class and section(of_class, "Parameters") and "Parameters\n" not in text):
            continue
        explained = section(text, "Parameters")
        if explained != [name for name in names if name in explained or name not in known]:
            found.append(f"{node.name}: explains {explained}, takes {names}")
        returns = node.returns is not None and ast.unparse(node.returns) != "None"
        if returns and not re.search(r"^Returns\n-+\n", text, re.MULTILINE):
            found.append(f"{node.name}: does not say what it returns")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_public_functions_say_parameters_and_returns(path: Path) -> None:
    assert faults(ast.parse(path.read_text()), of_room(path)) == []


def test_a_parameter_that_is_not_explained_is_found() -> None:
    text = '''
def price(tokens, width):
    """Seconds.

    Parameters
    ----------
    tokens
        ``[C]``.
    """
'''
    tree = ast.parse(text)
    assert faults(tree, known=["facts"]) == ["price: explains ['tokens'], takes ['tokens', 'width']"]
    assert faults(tree, known=["width"]) == []
