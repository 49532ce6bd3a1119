"""Follow the advice of a message literally: its sentences are turned into the call that they name."""

import ast
import re
from collections.abc import Callable, Mapping
from typing import Any

# Advice without a call: what to leave out, what to do with rows, and where to look.
NO_CALL = re.compile(
    r"leave (it|out|the)\b|convert the rows before|fill the nulls before|call it with each row|iterate once|"
    r"pass it to \w|help\((\w+\.?)+\) lists the keywords$"
)


class Ellipsed(ast.NodeTransformer):
    """Replace ``...``, which stands for a value that the message does not show, by the variable `given`."""

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return ast.Name("given", ast.Load()) if node.value is ... else node


def evaluated(code: str, names: Mapping[str, Any]) -> Any:
    tree = ast.fix_missing_locations(Ellipsed().visit(ast.parse(code, mode="eval")))
    return eval(compile(tree, code, "eval"), dict(names))


def call_in(text: str) -> str:
    """The longest Python expression at the start of a text."""
    ends = [len(text), *(found.start() for found in re.finditer(r"[ ;,]", text))]
    for end in sorted(ends, reverse=True):
        try:
            ast.parse(text[:end].strip(" ,;"), mode="eval")
        except SyntaxError:
            continue
        return text[:end].strip(" ,;")
    raise AssertionError(f"no expression in {text!r}")


def keywords_in(text: str, names: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords at the start of a text such as ``a=1, b=2 to open it``. ``a=`` gets the value `given`."""
    if renamed := re.match(r"(\w+)=(?=$|[ ;,])", text):
        return {renamed[1]: names["given"]}
    for end in sorted({len(text), *(found.start() for found in re.finditer(r"[ ;,]", text))}, reverse=True):
        try:
            ast.parse(f"dict({text[:end]})", mode="eval")
        except SyntaxError:
            continue
        return dict(evaluated(f"dict({text[:end]})", names))
    raise AssertionError(f"no keywords in {text!r}")


def follow(
    text: str,
    call: Callable[..., Any],
    functions: Mapping[str, Callable[..., Any]],
    names: Mapping[str, Any],
) -> Any:
    """Do what the advice about a keyword says.

    ``call`` is the called function with its other arguments. ``functions`` are calls of other functions.
    ``names`` are the variables that code may use. `given` is the value that was passed.
    """
    if other := re.match(r"([\w.]+) takes (.*)$", text):
        return functions[other[1]](**keywords_in(other[2], names))
    if NO_CALL.match(text):
        return call()
    if text.startswith("pass "):
        function = functions["open_dataset"] if text.endswith(" to open_dataset") else call
        return function(**keywords_in(text.removeprefix("pass "), names))
    if method := re.match(r"call (\..*?) of the result", text):
        return evaluated(f"result{method[1]}", {**names, "result": call()})
    if example := re.search(r", as in (.*)$", text):
        return evaluated(call_in(example[1]), {**names, "result": call()})
    if context := re.match(r"call the function under (.*)$", text):
        with evaluated(context[1], names):
            return call()
    assert text.startswith("call "), text
    return evaluated(call_in(text.removeprefix("call ")), names)
