"""Declarations out of a header: what is needed, as it is laid out there, and nothing guessed."""

import shutil
import subprocess
from types import SimpleNamespace

import cffi
import pytest

from engines.gguf.abi import LibraryMismatch, check_context, check_defaults, check_library, check_sizes
from engines.gguf.declarations import (
    HeaderMismatch,
    declarations_from_header,
    function_names,
    layout_assertions,
    signatures,
)
from engines.gguf.library import _shared_object, open_library, our_declarations

_HEADER = """
typedef signed int int32_t; typedef unsigned long size_t; typedef _Bool bool;
enum kind { NONE = -1, SOME = 1 << 2 };
struct unused { int32_t a; };
struct hidden;
typedef struct hidden * hidden_t;
typedef bool (*answer)(enum kind kind, void * data);
struct inner { enum kind kind; char name[8]; };
typedef struct params { size_t added_later; struct inner inner; answer callback; struct other * other; } params_t;
struct params defaults(void);
extern int32_t run(hidden_t hidden, params_t params, const float * values, enum kind kind);
void never_used(struct unused unused);
"""


def test_what_functions_need_is_taken_in_order_and_nothing_else():
    """Structs by value are complete, those behind pointers opaque, enums are integers."""
    text = declarations_from_header(_HEADER, ["run", "defaults"])
    ffi = cffi.FFI()
    ffi.cdef(text)
    assert [name for name, _ in ffi.typeof("struct params").fields] == ["added_later", "inner", "callback", "other"]
    assert ffi.sizeof("struct params") == 40
    assert "unused" not in text
    assert "enum" not in text


def test_a_function_that_is_missing_is_named():
    """An older or newer llama.cpp."""
    with pytest.raises(HeaderMismatch, match="does not declare llama_decode"):
        declarations_from_header(_HEADER, ["llama_decode"])


def test_a_type_that_is_missing_is_named():
    """A header that leans on one we do not know."""
    with pytest.raises(HeaderMismatch, match=r"cannot be read|does not define the type"):
        declarations_from_header("mystery_t run(void);", ["run"])


@pytest.mark.parametrize("text", ["struct {", "#include <stdio.h>\n}", "int run(int;"])
def test_what_is_no_header_is_a_sentence(text):
    """The parser's place is passed on."""
    with pytest.raises(HeaderMismatch, match="cannot be read"):
        declarations_from_header(text, ["run"])


def test_our_own_declarations_come_through_unchanged():
    """The list of functions, read and written again, declares the same layouts and signatures."""
    ours = our_declarations()
    names = function_names(ours)
    again = declarations_from_header(ours, names)
    one, other = cffi.FFI(), cffi.FFI()
    one.cdef(ours)
    other.cdef(again)
    for struct in ("llama_model_params", "llama_context_params", "llama_batch"):
        layouts = [[(n, f.offset) for n, f in ffi.typeof(f"struct {struct}").fields] for ffi in (one, other)]
        assert layouts[0] == layouts[1]
    assert signatures(ours, names) == signatures(again, names)


def test_another_signature_is_seen_through_typedefs():
    """A longer integer, one argument more, and by value where it was a pointer."""
    kinds = [
        "typedef int32_t token; int32_t f(token a, const char *b);",
        "int32_t f(int32_t x, char *y);",
        "int32_t f(int64_t x, char *y);",
        "int32_t f(int32_t x, char *y, int32_t z);",
        "struct s { int32_t a; }; int32_t f(int32_t x, struct s y);",
    ]
    first, same, *others = [signatures(text, ["f"]) for text in kinds]
    assert first == same
    assert all(other != first for other in others)


def test_the_compiler_proves_a_layout(tmp_path):
    """A field more or in another place does not compile."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    (tmp_path / "llama.h").write_text("#include <stdint.h>\nstruct s { int32_t a; void *added; char c; };\n")
    outcomes = []
    for fields in ("int32_t a; void *added; char c;", "int32_t a; char c;", "void *added; int32_t a; char c;"):
        ffi = cffi.FFI()
        ffi.cdef(f"struct s {{ {fields} }};")
        (tmp_path / "check.c").write_text(layout_assertions(ffi))
        command = ["cc", "-fsyntax-only", f"-I{tmp_path}", str(tmp_path / "check.c")]
        outcomes.append(subprocess.run(command, check=False, capture_output=True).returncode == 0)
    assert outcomes == [True, False, False]


class _Renamed:
    """A library with one function less."""

    def __init__(self, c, missing) -> None:
        self._c, self._missing = c, missing

    def __getattr__(self, name):
        if name == self._missing:
            raise AttributeError(name)
        return getattr(self._c, name)


def test_a_missing_function_is_named():
    """Before the first call, not in the middle of a request."""
    library = open_library("wheel")
    names = function_names(our_declarations())
    check_library(library.ffi, library.c, names, "The library", is_pinned=True)
    with pytest.raises(LibraryMismatch, match="The library has no function llama_state_seq_set_data"):
        check_library(
            library.ffi, _Renamed(library.c, "llama_state_seq_set_data"), names, "The library", is_pinned=True
        )


def test_wrong_declarations_of_the_real_library_are_found_out():
    """One field more or less in the struct, as other builds have it: a default is in the wrong place."""
    for wrong in (
        our_declarations().replace("    uint32_t n_rs_seq;\n", ""),
        our_declarations().replace("    int32_t ctx_type;\n", "    int32_t ctx_type;\n    int32_t one_more;\n"),
        our_declarations().replace("    uint32_t n_outputs_max;\n", ""),
    ):
        ffi = cffi.FFI()
        ffi.cdef(wrong)
        c = ffi.dlopen(str(_shared_object()))
        for is_pinned in (True, False):
            with pytest.raises(LibraryMismatch, match=r"laid out differently|has \d+ bytes|of another time"):
                check_library(ffi, c, (), "The library", is_pinned=is_pinned)


def test_a_shifted_default_and_another_size_are_named():
    """The first that differs says where the layouts part."""
    with pytest.raises(LibraryMismatch, match="n_batch is 512, not 2048"):
        check_defaults("It", SimpleNamespace(n_ctx=512, n_batch=512), {"n_ctx": 512, "n_batch": 2048})
    with pytest.raises(LibraryMismatch, match="has 7 bytes"):
        check_sizes(SimpleNamespace(sizeof=lambda _: 7), "It")
    asked = SimpleNamespace(n_seq_max=2, n_batch=3, n_ubatch=4, n_threads=5, n_threads_batch=6)
    c = SimpleNamespace(
        llama_n_seq_max=lambda _: 2, llama_n_batch=lambda _: 3, llama_n_ubatch=lambda _: 9,
        llama_n_threads=lambda _: 5, llama_n_threads_batch=lambda _: 6,
    )  # fmt: skip
    with pytest.raises(LibraryMismatch, match="took n_ubatch 4 for 9"):
        check_context(c, None, asked)
