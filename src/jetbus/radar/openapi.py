"""The HTTP API of Radar as an OpenAPI document, served at ``api/openapi.json``."""

from __future__ import annotations

from typing import Any

_INSTANT = "RFC 3339 text, microseconds since 1970, `now`, or an age such as `-2h`"
_ARROW = {"application/vnd.apache.arrow.stream": {"schema": {"type": "string", "format": "binary"}}}
_JSON = {"application/json": {"schema": {"type": "object"}}}


def _parameter(name: str, description: str, *, required: bool = False, kind: str = "string") -> dict[str, Any]:
    return {"name": name, "in": "query", "required": required, "description": description, "schema": {"type": kind}}


_RANGE = [_parameter("since", f"beginning, included: {_INSTANT}"), _parameter("until", f"end, excluded: {_INSTANT}")]
_PATH = _parameter("path", "the path of one state", required=True)
_NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
_RULE = _parameter("rule", "which paths, in the rule language; default `**`")
_PATHS = _parameter("path", "one path instead of a rule; may be repeated")
_MEMBER = _parameter("member", "the name of a member if the values are objects; dots lead deeper")
_LOGIN = {
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["user", "password"],
                "properties": {"user": {"type": "string"}, "password": {"type": "string"}},
            }
        }
    }
}


def _get(summary: str, parameters: list[dict[str, Any]], content: dict[str, Any], description: str) -> dict[str, Any]:
    errors = {
        "400": {"description": "a parameter is wrong", "content": _JSON},
        "401": {"description": "a login is missing", "content": _JSON},
        "403": {"description": "the login lacks the right to read the past", "content": _JSON},
        "429": {"description": "too many questions of one address wait", "content": _JSON},
        "404": {"description": "the bus has no journal", "content": _JSON},
        "503": {"description": "the journal cannot be read now", "content": _JSON},
    }
    answer = {"200": {"description": description, "content": content}}
    return {"get": {"summary": summary, "parameters": parameters, "responses": {**answer, **errors}}}


OPENAPI: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "jetbus Radar", "version": "1", "description": "The past of a Jet bus over HTTP."},
    "paths": {
        "/api/journal": _get("Describe the journal", [], _JSON, "first and last event, in microseconds"),
        "/api/series": _get(
            "Read the numbers of a state",
            [_PATH, _MEMBER, *_RANGE, _parameter("points", "buckets, default 1000", kind="integer")],
            _ARROW,
            "ts, first, min, max, last, count, end, bad (values of no good quality) per bucket; null for a gap; the"
            " first row may be before `since`",
        ),
        "/api/bands": _get(
            "Read the values of a state as stretches of time",
            [_PATH, _MEMBER, *_RANGE],
            _ARROW,
            "ts, value (JSON), count, bad (values of no good quality); a stretch is good or not as a whole",
        ),
        "/api/events": _get(
            "Read events",
            [
                _RULE,
                _PATHS,
                *_RANGE,
                _parameter("newest", "1 for the latest events, the newest first"),
                _parameter("events", "kinds, separated by commas; default `add,change,remove`"),
                _parameter("limit", "at most so many, default 1000", kind="integer"),
            ],
            _JSON,
            "events, and whether these are all; `source_ts` and `quality` where an owner has stated them",
        ),
        "/api/changes": _get(
            "Read the last event of each path in a range of time",
            [_RULE, *_RANGE],
            _JSON,
            "elements with their values, and removed paths; `reset` if the daemon has stopped or started in between",
        ),
        "/api/search": _get(
            "Search the tree at an instant",
            [
                _parameter("text", "words, or a rule"),
                _parameter("at", _INSTANT),
                _parameter("limit", "at most so many, default and most 1000", kind="integer"),
            ],
            _JSON,
            "paths, best first, and how many there are",
        ),
        "/api/differences": _get(
            "Compare the trees at two instants",
            [_parameter("a", f"default `-1h`: {_INSTANT}"), _parameter("b", f"default `now`: {_INSTANT}"), _RULE],
            _JSON,
            "paths with `before` and `after`; one that was added has no `before`, one that was removed no `after`",
        ),
        "/login": {
            "post": {
                "summary": "Log in to the bus; the cookie is for all other addresses",
                "requestBody": _LOGIN,
                "responses": {
                    "200": {"description": "a cookie, HttpOnly and SameSite", "content": _JSON},
                    "401": {"description": "the daemon refuses this login", "content": _JSON},
                },
            }
        },
        "/logout": {"post": {"summary": "Log out", "responses": {"200": {"description": "done", "content": _JSON}}}},
        "/api/last": _get(
            "Read the latest event of a path",
            [_PATH, _parameter("event", "its kind; default `change`")],
            _JSON,
            "the event, or null if there is none",
        ),
        "/api/boards": _get("List boards", [], _JSON, "names of the boards of the server"),
        "/api/boards/{name}": _get("Read a board", [_NAME], _JSON, "the board"),
        "/api/tree": _get("Read the tree at an instant", [_parameter("at", _INSTANT), _RULE], _JSON, "the elements"),
        "/api/export": _get(
            "Export events as a file",
            [_RULE, _PATHS, *_RANGE, _parameter("format", "`csv`, `jsonl` or `parquet`")],
            {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
            "the file",
        ),
    },
}
