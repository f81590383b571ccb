# The broker in a slim image: built apart, run without root, on a root file system that may be read-only.
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/broker
COPY constraints.txt mkdocs.yml pyproject.toml README.md ./
COPY api api
COPY broker broker
COPY config config
COPY docs docs
COPY fixtures fixtures
COPY optimizer optimizer
COPY providers providers
# The planner's inner loops are compiled here, else the first plan would do it in its own time.
RUN /opt/broker/bin/pip install --no-cache-dir --constraint constraints.txt . \
    && NUMBA_CACHE_DIR=/data/numba /opt/broker/bin/python -m optimizer.placement.compile_ahead

FROM python:3.11-slim-bookworm
ENV PATH=/opt/broker/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/data \
    NUMBA_CACHE_DIR=/data/numba \
    BROKER_HOST=0.0.0.0 \
    BROKER_LOG_FORMAT=json
RUN useradd --system --uid 10001 --home-dir /data broker
COPY --from=build /opt/broker /opt/broker
COPY --from=build --chown=10001:10001 /data /data
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 8080
# Alive, not ready: a broker that waits for its database must not be killed for it.
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/healthz', timeout=2)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["broker"]
CMD ["serve"]
