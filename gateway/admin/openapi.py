"""The OpenAPI document of the admin plane, made from the same rows as its routes."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.admin.endpoints import DEFAULT_PAGE, Endpoint
from gateway.admin.wire import ErrorBody
from policies.store import MAX_PAGE

_ERRORS = {
    "400": "The request cannot be used; `param` names the field",
    "401": "No credential, or one that opens nothing",
    "403": "The caller's role does not allow this",
    "404": "There is no such thing",
    "405": "This route does not take this method",
    "409": "Its state does not allow this",
    "413": "The body is too large",
    "503": "The store or a gateway process cannot be reached",
}


def openapi(endpoints: Sequence[Endpoint], version: str) -> dict[str, Any]:
    """An OpenAPI 3.1 document. `endpoints`: with their full paths."""
    kinds = [ErrorBody, *(kind for one in endpoints for kind in (one.body, one.answer) if kind is not None)]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(map(repr, kinds), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one in endpoints:
        paths.setdefault(_template(one), {})[one.method.lower()] = _operation(one, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Warmlane admin plane", "version": version},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}],
    }


def _template(endpoint: Endpoint) -> str:
    return re.sub(r"\{(\w+):\w+\}", r"{\1}", endpoint.path)


def _operation(endpoint: Endpoint, schema_of: dict[str, Any]) -> dict[str, Any]:
    error = {"content": {"application/json": {"schema": schema_of[repr(ErrorBody)]}}}
    answer = {"type": "object"} if endpoint.answer is None else schema_of[repr(endpoint.answer)]
    content = (
        {"text/plain": {"schema": {"type": "string"}}} if endpoint.is_text else {"application/json": {"schema": answer}}
    )
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "operationId": endpoint.respond.__name__,
        "parameters": [*_path_parameters(endpoint), *_query_parameters(endpoint)],
        "responses": {
            str(endpoint.status): {
                "description": "Done",
                "content": content,
            },
            **{status: {"description": text, **error} for status, text in _ERRORS.items()},
        },
    }
    if endpoint.body is not None:
        schema = schema_of[repr(endpoint.body)]
        operation["requestBody"] = {
            "required": not endpoint.is_body_optional,
            "content": {"application/json": {"schema": schema}},
        }
    if endpoint.is_public:
        operation["security"] = []
    return operation


def _path_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    names = re.findall(r"\{(\w+)(?::\w+)?\}", endpoint.path)
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _query_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    if not endpoint.is_list:
        flag = {"type": "boolean", "default": False}
        return [{"name": name, "in": "query", "schema": flag} for name in endpoint.flags]
    limit = {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": DEFAULT_PAGE}
    text = {"type": "string"}
    return [
        {"name": "limit", "in": "query", "schema": limit},
        *({"name": name, "in": "query", "schema": text} for name in ("after", *endpoint.filters)),
    ]
