# syntax=docker/dockerfile:1
# The router in an image of its own:  docker build -t warmroute .
#   docker run -p 127.0.0.1:8080:8080 -p 127.0.0.1:8081:8081 -v ./config:/etc/warmroute:ro \
#     -e WARMROUTE_LISTEN__ADMIN_TOKEN="$(openssl rand -hex 16)" warmroute

FROM python:3.13-slim AS build
WORKDIR /build
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY src ./src
# Everything the router needs as wheels, in the versions that its tests ran with; a file of another digest is refused. Those of
# the build itself are among them.
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip wheel --disable-pip-version-check --wheel-dir /wheels --require-hashes --requirement requirements.lock \
    && python -m pip install --disable-pip-version-check --root-user-action=ignore --no-index --find-links /wheels hatchling \
    && python -m pip wheel --disable-pip-version-check --wheel-dir /wheels --no-index --no-deps --no-build-isolation .

FROM python:3.13-slim
LABEL org.opencontainers.image.title="warmroute" \
      org.opencontainers.image.description="A router for several vLLM servers that keeps every conversation where its prefix cache is warm" \
      org.opencontainers.image.licenses="Apache-2.0"
# The wheels are only borrowed from the first stage, so the image holds them once, installed.
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    python -m pip install --disable-pip-version-check --no-cache-dir --root-user-action=ignore \
      --no-index --find-links /wheels 'warmroute[dns,kv-events,otel,workers]' \
    && useradd --system --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin warmroute
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# By number, so that Kubernetes' runAsNonRoot can see that it is not root.
USER 10001:10001

# 8080 is the model API, 8081 the dashboard, metrics and administration, which wants a token.
EXPOSE 8080 8081
STOPSIGNAL SIGTERM
# On the admin port, since the model API may speak TLS; where both do, give another check.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8081/livez', timeout=2)"]
ENTRYPOINT ["warmroute"]
CMD ["serve", "--config", "/etc/warmroute/warmroute.yaml", "--host", "0.0.0.0", "--admin-host", "0.0.0.0"]
