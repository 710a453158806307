"""Environment variables that say nothing to Warmlane, or that it was told of and that are not there. Pure.

The environment of a machine is shared, so a strange name is no error; a misspelt one must not go unnoticed either.
"""

import difflib
from collections.abc import Iterator, Mapping

from engines.launch.wheel_download import WHEEL_VARIABLE
from gateway.settings import Settings

PREFIX = "WARMLANE_"
# Beside the settings: what the commands and the download read by themselves.
OWN_NAMES = (
    "WARMLANE_HOME",
    "WARMLANE_PORT",
    "WARMLANE_ADMIN_PORT",
    "WARMLANE_ADMIN_TOKEN",
    "WARMLANE_ADMIN_URL",
    WHEEL_VARIABLE,
)


def overlooked(settings: Settings, environment: Mapping[str, str]) -> Iterator[str]:
    """One sentence for each unknown `WARMLANE_…` and for each key of a replica that is not in the environment."""
    named = {settings.alerts.webhook_secret_env, *(one.api_key_env for one in settings.replicas)}
    sections = tuple(PREFIX + name.upper() for name in type(settings).model_fields)
    for name in sorted(environment):
        if name.upper().startswith(PREFIX) and name not in named and not _is_known(name.upper(), sections):
            near = difflib.get_close_matches(name.upper().partition("__")[0], [*OWN_NAMES, *sections], 1)
            yield f"{name} is no setting of Warmlane and is ignored" + (f"; did you mean {near[0]}?" if near else "")
    for replica in settings.replicas:
        if replica.api_key_env and not environment.get(replica.api_key_env, "").strip():
            yield f"the replica {replica.name} is asked without a key: {replica.api_key_env} is not set"


def _is_known(name: str, sections: tuple[str, ...]) -> bool:
    return name in OWN_NAMES or name.partition("__")[0] in sections
