"""`python -m engines.gguf.describe FILE`: what a whole GGUF file says of itself, as JSON.

A process of its own, because a file from elsewhere is read here for the first time. Loads no llama.cpp.
"""

import json
import sys
from collections.abc import Sequence

from engines.gguf.header import GgufHeader, report

_TEXT_CHARACTERS = 200  # chosen: what a table can show


def describe(header: GgufHeader) -> dict[str, object]:
    """The fields of `ModelFacts` (engines/launch/model_manifest.py) that the header knows."""
    metadata = header.metadata
    context = metadata.get(f"{header.architecture}.context_length")
    parts = metadata.get("split.count")
    return {
        "architecture": header.architecture[:_TEXT_CHARACTERS],
        "quantisation": _quantisation(metadata.get("general.file_type")),
        "context_tokens": context if isinstance(context, int) else 0,
        "has_chat_template": bool(metadata.get("tokenizer.chat_template")),
        "licence": str(metadata.get("general.license") or "")[:_TEXT_CHARACTERS],
        "num_parts": max(1, parts) if isinstance(parts, int) else 1,
    }


def _quantisation(file_type: object) -> str:
    """`Q4_1` for 3, and so on; nothing for a number that the gguf package does not know."""
    from gguf import LlamaFileType

    if not isinstance(file_type, int):
        return ""
    try:
        name = LlamaFileType(file_type).name
    except ValueError:
        return ""
    return name.removeprefix("MOSTLY_").removeprefix("ALL_")


def main(arguments: Sequence[str]) -> int:
    """0 and one line of JSON for a whole GGUF file, 1 with one sentence on stderr otherwise."""
    return report(arguments, lambda header: json.dumps(describe(header)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
