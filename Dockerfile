# Timeball in a container: `docker build -t timeball .`, then `docker run timeball worker`.
# What it runs is chosen by the command (api, scheduler, worker, db migrate ...), and set by TIMEBALL_... in the environment.
# docs/howto/deploy.md shows an image of your own with your handlers and their packages.

FROM python:3.12-slim AS build
RUN python -m venv /opt/timeball
ENV PATH=/opt/timeball/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
# The packages first: they change seldom, and their layer is kept.
COPY requirements/image.lock requirements/
RUN pip install --no-deps --require-hashes -r requirements/image.lock
COPY pyproject.toml README.md LICENSE ./
COPY src src
# What was needed to build it is of no use to those who run it.
RUN pip install --no-deps --no-build-isolation . \
 && pip uninstall --yes editables hatchling packaging pathspec pluggy trove-classifiers pip

FROM python:3.12-slim
LABEL org.opencontainers.image.title=Timeball \
      org.opencontainers.image.description="Distributed job scheduler and executor" \
      org.opencontainers.image.licenses=MIT
RUN groupadd --gid 10001 timeball && useradd --uid 10001 --gid 10001 --home-dir /var/lib/timeball --create-home --shell /usr/sbin/nologin timeball
COPY --from=build /opt/timeball /opt/timeball
# PIP_PYTHON: `pip install` in an image of your own installs beside Timeball, or fails if it may not.
ENV PATH=/opt/timeball/bin:$PATH PYTHONUNBUFFERED=1 PIP_PYTHON=/opt/timeball/bin/python TIMEBALL_LOG_FORMAT=json TIMEBALL_DATA_DIR=/var/lib/timeball
# By number: Kubernetes checks that it is not root's.
USER 10001:10001
WORKDIR /var/lib/timeball
EXPOSE 8080
# Asks whether a node of this container holds its lease, or the API answers.
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s --start-interval=1s --retries=3 CMD ["timeball", "alive"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["timeball"]
CMD ["--help"]
