"""Rewrites a template so that all it does is metered: loops, macros, printed text, and the lists it makes. Pure.

The meters are functions under names that a template cannot use itself; template_sandbox.py gives them a meaning.
"""

from typing import cast

import jinja2
import jinja2.nodes
import jinja2.visitor

SPEND, TURNS, JOINED, BUILT, MAPPED = "_spend", "_turns", "_joined", "_built", "_mapped"
_NAMES = {SPEND, TURNS, JOINED, BUILT, MAPPED}
COPIED, STEPPED = "_copied", "_stepped"  # filters
_MAX_INT_BITS = 60  # of constants; as of numbers that templates compute


class Metered(jinja2.visitor.NodeTransformer):
    """Puts a meter into loops, macros and blocks of text, and gives `~` a bound."""

    def visit_For(self, node: jinja2.nodes.For) -> jinja2.nodes.Node:  # noqa: N802  # by the node's name
        """A loop: each turn spends, and the text it writes."""
        self.generic_visit(node)
        node.iter = _call(TURNS, [cast(jinja2.nodes.Expr, node.iter)], node.lineno)
        return node

    def visit_Macro(self, node: jinja2.nodes.Macro) -> jinja2.nodes.Node:  # noqa: N802  # by the node's name
        """A macro: each call spends."""
        self.generic_visit(node)
        node.body.insert(0, jinja2.nodes.Output([_call(SPEND, [], node.lineno)], lineno=node.lineno))
        return node

    def visit_CallBlock(self, node: jinja2.nodes.CallBlock) -> jinja2.nodes.Node:  # noqa: N802  # by the node's name
        """A call's body is a macro too."""
        self.generic_visit(node)
        node.body.insert(0, jinja2.nodes.Output([_call(SPEND, [], node.lineno)], lineno=node.lineno))
        return node

    def visit_Output(self, node: jinja2.nodes.Output) -> jinja2.nodes.Node:  # noqa: N802  # by the node's name
        """Fixed text is spent like any other."""
        self.generic_visit(node)
        length = sum(len(part.data) for part in node.nodes if isinstance(part, jinja2.nodes.TemplateData))
        if length:
            node.nodes.insert(0, _call(SPEND, [jinja2.nodes.Const(length)], node.lineno))
        return node

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Node:  # noqa: N802  # by the node's name
        """`a ~ b`."""
        self.generic_visit(node)
        return _call(JOINED, node.nodes, node.lineno)

    def visit_List(self, node: jinja2.nodes.List) -> jinja2.nodes.Node:  # noqa: N802  # by the node's name
        """`[a, b]`."""
        self.generic_visit(node)
        return _call(BUILT, [node], node.lineno)

    def visit_Dict(self, node: jinja2.nodes.Dict) -> jinja2.nodes.Node:  # noqa: N802  # by the node's name
        """`{a: b}`."""
        self.generic_visit(node)
        pairs = [jinja2.nodes.Tuple([one.key, one.value], "load", lineno=node.lineno) for one in node.items]
        return _call(MAPPED, [jinja2.nodes.List(pairs, lineno=node.lineno)], node.lineno)

    def visit_Getitem(self, node: jinja2.nodes.Getitem) -> jinja2.nodes.Node:  # noqa: N802  # by the node's name
        """`a[b:c]` copies, and does not go through the sandbox; `a[b]` may hash a long key."""
        self.generic_visit(node)
        return _filtered(COPIED if isinstance(node.arg, jinja2.nodes.Slice) else STEPPED, node)

    def visit_Compare(self, node: jinja2.nodes.Compare) -> jinja2.nodes.Node:  # noqa: N802  # by the node's name
        """`a == b in c`: each may look at all of a list."""
        self.generic_visit(node)
        for operand in node.ops:
            operand.expr = _filtered(STEPPED, operand.expr)
        return node

    def visit_Const(self, node: jinja2.nodes.Const) -> jinja2.nodes.Node:  # noqa: N802  # by the node's name
        """A number that is written out."""
        if isinstance(node.value, int) and node.value.bit_length() > _MAX_INT_BITS:
            raise jinja2.TemplateSyntaxError("a number is too large", node.lineno)
        return node

    def visit_Tuple(self, node: jinja2.nodes.Tuple) -> jinja2.nodes.Node:  # noqa: N802  # by the node's name
        """`(a, b)`, unless it is assigned to."""
        self.generic_visit(node)
        return _call(BUILT, [node], node.lineno) if node.ctx == "load" else node

    def visit_Name(self, node: jinja2.nodes.Name) -> jinja2.nodes.Node:  # noqa: N802  # by the node's name
        """The meters' own names are not for templates."""
        if node.name in _NAMES:
            raise jinja2.TemplateSyntaxError("a reserved name", node.lineno)
        return node


def _filtered(name: str, node: jinja2.nodes.Expr) -> jinja2.nodes.Filter:
    return jinja2.nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _call(name: str, args: list[jinja2.nodes.Expr], lineno: int) -> jinja2.nodes.Call:
    function = jinja2.nodes.Name(name, "load", lineno=lineno)
    return jinja2.nodes.Call(function, args, [], None, None, lineno=lineno)
