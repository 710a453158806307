"""cffi declarations of what we use, taken from a llama.cpp build's own header, so that no layout is guessed.

Struct layouts change between builds. llama.cdef is the list of the functions we use and what they look like in the
pinned wheel; for another build the same functions are read from its header as its compiler saw it. Pure.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import cffi
from pycparser import c_ast, c_generator, c_parser  # type: ignore[import-untyped]  # a part of cffi

# What cffi knows by itself, by the name that a header uses.
_KNOWN = frozenset(f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)) | {
    "size_t", "bool", "_Bool", "void", "char", "short", "int", "long", "float", "double", "signed", "unsigned",
}  # fmt: skip


class HeaderMismatch(Exception):
    """The header does not declare what we use, or not as we use it; the message is one sentence without an end."""


def function_names(declarations: str) -> tuple[str, ...]:
    """The functions that C declarations (with C's fixed-width types, without preprocessor lines) declare."""
    return tuple(name for name, node in _declared(_parse(declarations)) if isinstance(node.type, c_ast.FuncDecl))


def declarations_from_header(preprocessed: str, functions: Iterable[str]) -> str:
    """Declarations of `functions` and of all that they need, out of a preprocessed header.

    Structs that are only pointed to stay opaque; enums become the 32-bit integers they are. Raises `HeaderMismatch`.
    """
    try:
        header = _Header(_parse(preprocessed))
    except c_parser.ParseError as error:
        raise HeaderMismatch(f"its header cannot be read: {error}") from error
    for name in functions:
        header.take_function(name)
    return "\n".join(f"{line};" for line in header.lines) + "\n"


def signatures(declarations: str, functions: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """What each function gives and takes: type names with typedefs resolved, without `const`; structs by name only."""
    header = _Header(_parse(declarations))
    return {name: header.signature(name) for name in functions}


def layout_assertions(ffi: cffi.FFI) -> str:
    """C source that compiles beside the header only if every struct is laid out as `ffi` believes."""
    lines = ['#include "llama.h"', "#include <stddef.h>"]
    for tag in sorted(ffi.list_types()[1]):
        ctype = ffi.typeof(f"struct {tag}")
        if ctype.fields is None:
            continue
        lines.append(_assertion(f"sizeof(struct {tag})", ffi.sizeof(f"struct {tag}")))
        lines += [_assertion(f"offsetof(struct {tag}, {name})", field.offset) for name, field in ctype.fields]
    return "\n".join(lines) + "\n"


def _assertion(expression: str, value: int) -> str:
    return f'_Static_assert({expression} == {value}, "{expression}");'


def _parse(text: str) -> c_ast.FileAST:
    # The parser knows C, not its library: the types that cffi knows are told first.
    known = "".join(f"typedef int {name};" for name in sorted(_KNOWN) if name.endswith("_t"))
    return c_parser.CParser().parse(f"{known}typedef int bool;\n{_without_comments(text)}")


def _without_comments(text: str) -> str:
    return "\n".join(line.partition("//")[0] for line in text.splitlines())


def _declared(tree: c_ast.FileAST) -> Iterator[tuple[str, Any]]:
    return ((node.name, node) for node in tree.ext if isinstance(node, c_ast.Decl) and node.name)


class _Header:
    """A parsed header; `lines` grows by what is taken from it, each thing once and after what it needs."""

    def __init__(self, tree: c_ast.FileAST) -> None:
        self.lines: list[str] = []
        self._functions = {name: node for name, node in _declared(tree) if isinstance(node.type, c_ast.FuncDecl)}
        self._typedefs = {node.name: node for node in tree.ext if isinstance(node, c_ast.Typedef)}
        self._structs = dict(_structs(tree))
        self._taken: set[str] = set()
        self._writer = c_generator.CGenerator()

    def take_function(self, name: str) -> None:
        node = self._functions.get(name)
        if node is None:
            raise HeaderMismatch(f"its header does not declare {name}")
        node.storage, node.funcspec = [], []
        self._need(node.type, by_value=True)
        self._write(node)

    def signature(self, name: str) -> tuple[str, ...]:
        function = self._functions[name].type
        parameters = [parameter.type for parameter in function.args.params] if function.args else []
        return tuple(self._type_name(part) for part in (function.type, *parameters))

    def _type_name(self, node: Any) -> str:
        match node:
            case c_ast.PtrDecl():
                return f"{self._type_name(node.type)}*"
            case c_ast.FuncDecl():
                parts = [self._type_name(parameter.type) for parameter in node.args.params]
                return f"{self._type_name(node.type)}({','.join(parts)})"
            case c_ast.TypeDecl():
                return self._type_name(node.type)
            case c_ast.Struct():
                return f"struct {node.name}"
            case c_ast.IdentifierType():
                known = self._typedefs.get(node.names[0])
                return " ".join(node.names) if known is None or node.names[0] in _KNOWN else self._type_name(known.type)
        return type(node).__name__

    def _write(self, node: c_ast.Node) -> None:
        self.lines.append(self._writer.visit(_without_enums(node)))

    def _need(self, node: Any, *, by_value: bool) -> None:
        """Take what a type needs. Behind a pointer a struct need not be complete."""
        match node:
            case c_ast.PtrDecl():
                self._need(node.type, by_value=False)
            case c_ast.FuncDecl():
                for parameter in node.args.params if node.args else ():
                    self._need(parameter.type, by_value=True)
                self._need(node.type, by_value=True)
            case c_ast.TypeDecl() | c_ast.ArrayDecl() | c_ast.Typename():
                self._need(node.type, by_value=by_value)
            case c_ast.IdentifierType():
                for name in node.names:
                    self._take_typedef(name)
            case c_ast.Struct() | c_ast.Union():
                self._take_struct(node.name, by_value=by_value)

    def _take_typedef(self, name: str) -> None:
        if name in _KNOWN or name in self._taken:
            return
        self._taken.add(name)
        node = self._typedefs.get(name)
        if node is None:
            raise HeaderMismatch(f"its header does not define the type {name}")
        if isinstance(node.type, c_ast.TypeDecl) and isinstance(node.type.type, c_ast.Struct):
            self._take_struct(node.type.type.name, by_value=True)
            node.type.type.decls = None
        else:
            self._need(node.type, by_value=True)
        self._write(node)

    def _take_struct(self, tag: str, *, by_value: bool) -> None:
        struct = self._structs.get(tag)
        if not by_value or struct is None or f"struct {tag}" in self._taken:
            return
        self._taken.add(f"struct {tag}")
        for field in struct.decls:
            self._need(field.type, by_value=True)
        self._write(c_ast.Decl(None, [], [], [], [], struct, None, None))


def _structs(tree: c_ast.FileAST) -> Iterator[tuple[str, Any]]:
    """Every named struct with its fields, by its own line or inside a typedef."""
    for node in tree.ext:
        inner = node.type.type if isinstance(node, c_ast.Typedef) else getattr(node, "type", None)
        if isinstance(inner, c_ast.Struct) and inner.decls and inner.name:
            yield inner.name, inner


def _without_enums(node: Any) -> Any:
    """The same tree with every enum written as the integer it is; changes the tree."""
    for _, child in node.children():
        if isinstance(child, c_ast.TypeDecl) and isinstance(child.type, c_ast.Enum):
            child.type = c_ast.IdentifierType(["int32_t"])
        _without_enums(child)
    return node
