"""Radar: a web inspector for any Jet bus.

    browser  <- WebSocket ->  session  <- Jet ->  daemon        the tree, values of visible rows, set, call
    browser  <- HTTP ------>  archive  <------->  journal       history, the tree of the past, exports

A page never gets more than it shows: one session per browser tab fetches the whole bus on the server's side, passes on
which paths there are, and sends values only of the rows that are visible, at most a few times a second. History comes
from the journal with pyarrow, reduced to the pixels of a chart. Nothing here knows Spark.

    app               page, WebSocket, logins and the HTTP API;  ``server``, ``child`` of a daemon, ``limits``
    tab               one browser tab;  ``mirror`` of the bus for all tabs of a login, ``watched`` elements, ``search``
    archive           a journal, or a daemon that keeps one;  ``history``, its HTTP API, ``series``, ``exports``
    logins            users of cookies;  ``security`` against other pages
    boards            boards that the server offers;  ``openapi``, the document of the API
"""

from __future__ import annotations

from jetbus.radar.app import RadarSettings, create_app

__all__ = ["RadarSettings", "create_app"]
