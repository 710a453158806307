"""A change that is written is told to the gateways, and its answer says whether they have confirmed it."""

import structlog
from starlette.responses import Response

from gateway.admin.control_client import ControlError, GatewayControl
from gateway.admin.endpoints import reply

APPLIED_HEADER = "x-warmlane-applied"

log = structlog.get_logger()


class Applied:
    """The answer to a change carries `x-warmlane-applied`: `true` when every gateway process has confirmed it.

    `false` when one did not: it will follow by itself, within half a second of being well again.
    """

    def __init__(self, control: GatewayControl) -> None:
        self._control = control

    async def answer(self, event: str, subject: str, content: object, status: int = 200) -> Response:
        """The answer, once the gateways know of the change or have been given up on."""
        applied = "true"
        try:
            await self._control.refresh_directories()
        except ControlError as error:
            applied = "false"
            log.warning("admin.change_not_confirmed", subject=subject, error=str(error))
        log.info("admin.changed", change=event, subject=subject)
        return reply(content, status, {APPLIED_HEADER: applied})
