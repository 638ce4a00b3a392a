# Timeball in a container: `docker build -t timeball .`, then `docker run timeball worker`.
# What it runs is chosen by the command (api, scheduler, worker, db migrate ...), and set by TIMEBALL_... in the environment.

FROM python:3.12-slim AS build
RUN python -m venv /opt/timeball
ENV PATH=/opt/timeball/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
# The packages first: they change seldom, and their layer is kept.
COPY requirements/image.lock requirements/
RUN pip install --no-deps --require-hashes -r requirements/image.lock
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-deps --no-build-isolation . && pip uninstall --yes hatchling pip

FROM python:3.12-slim
RUN useradd --system --uid 10001 --home-dir /var/lib/timeball --create-home timeball
COPY --from=build /opt/timeball /opt/timeball
ENV PATH=/opt/timeball/bin:$PATH PYTHONUNBUFFERED=1 TIMEBALL_LOG_FORMAT=json TIMEBALL_DATA_DIR=/var/lib/timeball
USER timeball
WORKDIR /var/lib/timeball
EXPOSE 8080
# Asks whether a node of this machine holds its lease, or the API answers.
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s --retries=3 CMD ["timeball", "alive"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["timeball"]
CMD ["--help"]
