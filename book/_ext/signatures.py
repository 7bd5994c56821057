"""Sphinx extension: the reference shows signatures and docstrings as the source writes them.

Annotations: `ArrayLike` or `Float[Tensor, "batch length"]`; at run time they are objects that Python prints at length, or under another name.
Docstrings: `$x$` is a formula and `|x|` stands for itself, as in the notebooks; what is returned is described in words, since the signature has its type.
"""
import ast
import inspect
import re
import sys
import textwrap

from sphinx.ext.intersphinx import resolve_reference_any_inventory
from sphinx.ext.napoleon.docstring import GoogleDocstring

# Names whose full form cannot be read off the object.
ALIASES = {"ArrayLike": "numpy.typing.ArrayLike", "NDArray": "numpy.typing.NDArray", "Any": "typing.Any", "Literal": "typing.Literal"}


def _definition(obj):
    """The syntax tree of a function or class, or None when its source is not at hand."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(obj))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None


def _dataclass_arguments(node):
    arguments = []
    for line in node.body:
        if not isinstance(line, ast.AnnAssign) or "ClassVar" in ast.unparse(line.annotation):
            continue
        value = line.value
        if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("field"):
            options = {keyword.arg: keyword.value for keyword in value.keywords}
            if ast.unparse(options.get("init", ast.Constant(True))) == "False":
                continue
            factory = options.get("default_factory")
            value = options.get("default") or (ast.Call(factory, [], []) if factory else None)
        text = f"{line.target.id}: {ast.unparse(line.annotation)}"
        arguments.append(text + (f" = {ast.unparse(value)}" if value else ""))
    return ", ".join(arguments)


def signature(obj):
    """(arguments, what is returned) of a function or class, as its source has them; None when there is none to read."""
    node = _definition(obj)
    if isinstance(node, ast.ClassDef):
        init = next((f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"), None)
        if init is None:
            return (f"({_dataclass_arguments(node)})", "") if hasattr(obj, "__dataclass_fields__") else None
        node, returns = init, ""
    elif isinstance(node, ast.FunctionDef):
        returns = ast.unparse(node.returns) if node.returns else ""
    else:
        return None
    listed = node.args.posonlyargs or node.args.args
    if listed and listed[0].arg in ("self", "cls"):
        del listed[0]
    return f"({ast.unparse(node.args)})", returns


def _show(app, what, name, obj, options, shown, returned):
    if what in ("function", "method", "class"):
        found = signature(inspect.unwrap(obj) if what != "class" else obj)
        if found:
            return found[0], found[1] or None


def _look_up(module, name):
    """What a dotted name means in a module, or None."""
    obj = sys.modules.get(module)
    for part in name.split("."):
        obj = getattr(obj, part, getattr(obj, "__builtins__", {}).get(part) if obj is sys.modules.get(module) else None)
    return obj


def _resolve(app, env, node, content):
    """A name of a signature means what it means in its module; link it when an inventory has it."""
    module, name = node.get("py:module"), node["reftarget"]
    if node["refdomain"] != "py" or not module or node.get("refexplicit"):
        return None
    meant = _look_up(module, name)
    if meant is None:
        return None
    full = ALIASES.get(name.rsplit(".", 1)[-1]) or f"{getattr(meant, '__module__', '')}.{getattr(meant, '__qualname__', '')}"
    for target in (full, full.removeprefix("builtins.")):
        node["reftarget"], node["reftype"] = target, "obj"
        if target.startswith("transformer_course."):
            found = env.get_domain("py").resolve_xref(env, node["refdoc"], app.builder, "obj", target, node, content)
        else:
            found = resolve_reference_any_inventory(env, True, node, content)
        if found is not None:
            return found
    return content


CODE = re.compile(r"(``.*?``|`[^`]*`|\$[^$]+\$)")


def docstring_line(line):
    """Markdown's formulas and bars in the words of reStructuredText; examples and code stay as they are."""
    if line.lstrip().startswith((">>>", "...")):
        return line
    parts = CODE.split(line)
    return "".join(f":math:`{part[1:-1]}`" if part.startswith("$") and index % 2 else part if index % 2 else part.replace("|", r"\|")
                   for index, part in enumerate(parts))


def _docstring(app, what, name, obj, options, lines):
    lines[:] = map(docstring_line, lines)


def _returns_in_words(self, preprocess_types=False):
    """In place of napoleon's: what stands before a colon is no type."""
    lines = self._dedent(self._consume_to_next_section())
    return [("", "", lines)] if lines else []


def setup(app):
    GoogleDocstring._consume_returns_section = _returns_in_words
    app.connect("autodoc-process-docstring", _docstring, priority=100)  # before napoleon
    app.connect("autodoc-process-signature", _show)
    app.connect("missing-reference", _resolve, priority=600)  # after intersphinx
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
