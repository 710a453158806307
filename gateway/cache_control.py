"""The control socket's part that is about prefixes: where prompts of a project differ, and warming one on replicas."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.errors import ClientError, Problem, Refused
from gateway.lifecycle import Lifecycle
from gateway.parts import Parts
from gateway.prefix_report import reports
from gateway.warm_wire import WarmBody
from gateway.warming import Warming


class CacheControl:
    """Routes of `control.py`'s application."""

    def __init__(self, parts: Parts, lifecycle: Lifecycle) -> None:
        self._parts = parts
        self._warming = Warming(parts, lifecycle)

    def routes(self) -> list[Route]:
        """The routes of this part."""
        return [
            Route("/prefixes", self.prefixes, methods=["GET"]),
            Route("/prefixes/warm", self.warm, methods=["POST"]),
        ]

    async def prefixes(self, _request: Request) -> Response:
        """Where projects' successive prompts differ, as this gateway has seen them."""
        parts = self._parts
        return _json(reports(parts.prefixes, parts.router.ratios, parts.clock(), parts.unix()))

    async def warm(self, request: Request) -> Response:
        """Have replicas read a prefix in the name of a project; what each did."""
        try:
            asked = msgspec.json.decode(await request.body(), type=WarmBody)
            return _json(await self._warming.warm(asked))
        except (ClientError, Refused) as error:
            return _problem(error.problem)
        except (msgspec.MsgspecError, RecursionError) as error:
            return _problem(Problem(400, str(error), "invalid_request_error"))


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _problem(problem: Problem) -> Response:
    return Response(problem.body(), problem.status, media_type="application/json")
