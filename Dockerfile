# The daemon with a journal and Radar, and the command jet.
#
#   docker build --tag jetbus --build-arg VERSION=0.1.0 .
#   docker run --network host --volume jet:/var/lib/jetd jetbus
#
# It listens on the loopback address only. Told otherwise, whoever reaches a published port can use the bus; give it users
# and TLS, too:
#
#   docker run --publish 11122:11122 --env 'JET_TCP=*:11122' --env JET_USERS=/var/lib/jetd/users.json ... jetbus

# This one has a C compiler, that one is small.
FROM python:3.13 AS build
# There is no git here to ask which tag this is.
ARG VERSION=0.1.0.dev0
COPY requirements/bus.txt requirements/node.txt /requirements/
RUN pip install --no-cache-dir --require-hashes -r /requirements/bus.txt -r /requirements/node.txt
COPY pyproject.toml setup.py README.md LICENSE /src/
COPY build_backend /src/build_backend
COPY web /src/web
COPY src /src/src
RUN SETUPTOOLS_SCM_PRETEND_VERSION=$VERSION pip wheel --no-cache-dir --no-build-isolation --no-deps --wheel-dir /wheels /src

FROM python:3.13-slim
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    --mount=type=bind,from=build,source=/requirements,target=/requirements \
    pip install --no-cache-dir --require-hashes -r /requirements/bus.txt \
    && pip install --no-cache-dir --no-deps /wheels/jetbus-*.whl \
    && useradd --system --create-home --home-dir /var/lib/jetd jetd
USER jetd
VOLUME /var/lib/jetd
ENV JET_TCP=localhost:11122 JET_WS=localhost:11123 JET_BINARY=localhost:11124 JET_RADAR=localhost:11128
ENV JET_UNIX=off JET_BINARY_UNIX=off JET_JOURNAL=/var/lib/jetd/journal
EXPOSE 11122 11123 11124 11128
# Asks what it would be asked: whether the bus answers.
HEALTHCHECK --interval=30s --timeout=5s CMD ["jet", "--url", "jet://localhost:11122", "ls", "$jet"]
ENTRYPOINT ["jetd"]
