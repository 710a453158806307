"""From a configuration file and the environment to settings, or to every reason why not.

A gateway process is given the settings in force as JSON, so that a file that was changed since says nothing to it.
"""

import errno
import json
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_settings import BaseSettings, SettingsError

from gateway.config_errors import sentences

MAX_FILE_BYTES = 1024 * 1024  # chosen: some thousand replicas
_ENVIRONMENT = "the environment"

S = TypeVar("S", bound=BaseSettings)


def read_settings(path: Path | None, in_file: type[BaseModel], in_all: type[S]) -> S | list[str]:
    """An `in_all`: the file (none: the defaults; ending in .json: JSON) with the environment on top.

    A list: one sentence for each mistake of the file, which must be an `in_file`, and of the environment.
    """
    where = str(path) if path is not None else _ENVIRONMENT
    try:
        values = _read(path) if path is not None else {}
    except OSError as error:
        return [f"cannot read the configuration {path}: {error.strerror}"]
    except (ValueError, TypeError, RecursionError) as error:  # of both: what is not UTF-8, too
        return [f"{path} is not {'JSON' if _is_json(where) else 'TOML'}: {error}"]
    lines: list[str] = []
    known: set[tuple[str | int, ...]] = set()
    try:
        # The file has types, the environment only text: `true` or "5" in the file is no number.
        in_file.model_validate_json(json.dumps(values, default=str), strict=True)
    except ValidationError as error:
        known = {one["loc"] for one in error.errors()}
        lines = [f"{where}: {sentence}" for sentence in sentences(in_file, values, error.errors())]
    try:
        settings = in_all(**values)
    except SettingsError as error:
        found = re.search(r'field "(\w+)"', str(error))  # the error itself may hold the value, which may be a secret
        name = f"WARMLANE_{found[1].upper()}" if found else "a variable"
        return [*lines, f"{_ENVIRONMENT}: {name} must be JSON"]
    except ValidationError as error:
        new = [one for one in error.errors() if one["loc"] not in known]
        told = zip(new, sentences(in_file, values, new), strict=True)
        return lines + [f"{_ENVIRONMENT if one['loc'] else where}: {sentence}" for one, sentence in told]
    return lines or settings


def _read(path: Path) -> dict[str, Any]:
    text = _content(path).decode()
    return dict(json.loads(text)) if _is_json(str(path)) else tomllib.loads(text)


def _content(path: Path) -> bytes:
    """What is in the file. Raises `OSError`, also for a pipe or a device: to read one may take for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MAX_FILE_BYTES // 1024} KiB, which no configuration has")
    return content


def _is_json(name: str) -> bool:
    return name.endswith(".json")
