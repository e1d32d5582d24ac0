# The daemon with a journal, and the command jet.
#
#   docker build --tag jetbus --build-arg VERSION=0.1.0 .
#   docker run --publish 11122:11122 --publish 11123:11123 --volume jet:/var/lib/jetd jetbus
#
# Whoever reaches the published ports can use the bus: publish them to 127.0.0.1 only, or give it users and TLS.

# This one has a C compiler, that one is small.
FROM python:3.13 AS build
# There is no git here to ask which tag this is.
ARG VERSION=0.1.0.dev0
COPY pyproject.toml setup.py README.md LICENSE /src/
COPY build_backend /src/build_backend
COPY src /src/src
RUN SETUPTOOLS_SCM_PRETEND_VERSION=$VERSION pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /src

FROM python:3.13-slim
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir "$(echo /wheels/jetbus-*.whl)[daemon,history]" \
    && useradd --system --create-home --home-dir /var/lib/jetd jetd
USER jetd
VOLUME /var/lib/jetd
EXPOSE 11122 11123 11124
# Asks what it would be asked: whether the bus answers.
HEALTHCHECK --interval=30s --timeout=5s CMD ["jet", "--url", "jet://127.0.0.1:11122", "ls", "$jet"]
ENTRYPOINT ["jetd"]
CMD ["--tcp", "0.0.0.0:11122", "--ws", "0.0.0.0:11123", "--binary", "0.0.0.0:11124", "--unix", "off", "--binary-unix", "off", "--journal", "/var/lib/jetd/journal"]
